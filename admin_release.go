package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

// This file releases slots for an operator, and has the trail tell of it.

const (
	maxReleaseBytes = 64 << 10
	maxReason       = 500 // characters
	// listedMost is the bound of [slotstore.Store.Slots].
	listedMost = 1000
	// releaseRounds bounds a release of everything against a user who starts streams as fast as they are released.
	releaseRounds = 100
)

// releaseOrder is what POST /admin/api/release asks for.
type releaseOrder struct {
	user, id, reason string // no id: all of the user's slots
}

// apiRelease releases one or all slots of a user. Whatever comes of it is in the trail before it is answered.
func (a *admin) apiRelease(w http.ResponseWriter, r *http.Request) {
	entry := auditEntry{operator: operatorOf(r), peer: peerOf(r), result: auditReleased}
	order, refusal := readOrder(w, r)
	if err := a.signIn.sameOrigin(r); err != nil { // read all the same: the trail tells whose slots it was after
		refusal = &problem{http.StatusForbidden, "a change must come from this page, not from another site: " + err.Error()}
	}
	entry.user, entry.reason = cut(order.user, 256), cut(order.reason, 4*maxReason)

	var done slotstore.Releases
	if refusal != nil {
		entry.result = auditRefused
	} else {
		// An operator who hangs up does not undo her release.
		released, role, err := a.release(context.WithoutCancel(r.Context()), order)
		done = released
		a.metrics.released(sourceAdmin, done)
		a.metrics.releases[sourceAdmin].add(resultUnrecorded, len(done.Unrecorded)) // and is not kept
		if err != nil {
			entry.result = auditFailed
			away := a.storeAway(role, err)
			refusal = &problem{away.status, fmt.Sprintf("%d slots are released, others may be; %s", len(done.Released), away.detail)}
		}
	}
	entry.ids, entry.time = releasedIDs(done.Released), time.Now()

	a.tell(entry, refusal)
	answer := fmt.Appendf(nil, `{"released":%d,"ids":`, len(entry.ids))
	answer = append(appendStrings(answer, entry.ids), '}')
	switch err := a.audit.write(entry); {
	case err != nil:
		writeAuditFailed(w, entry)
	case refusal != nil:
		refusal.write(w)
	default:
		writeAnswer(w, answer)
	}
}

// tell logs what came of it, beside the trail.
func (a *admin) tell(entry auditEntry, refusal *problem) {
	if len(entry.ids) > 0 || entry.result == auditReleased {
		a.log.Info().Str("event", "slots_released").Str("user", entry.user).Int("released", len(entry.ids)).Strs("ids", entry.ids).
			Str("operator", entry.operator).Str("reason", entry.reason).Msg("an operator released slots")
	}
	if refusal != nil {
		a.log.Warn().Str("operator", entry.operator).Str("peer", entry.peer).Str("user", entry.user).Int("status", refusal.status).
			Str("result", entry.result).Msg("no release: " + refusal.detail)
	}
}

// writeAuditFailed says that what was done stands, and that nobody will find it in the trail.
func writeAuditFailed(w http.ResponseWriter, entry auditEntry) {
	b := []byte(`{"title":"audit_failed","status":500,"detail":`)
	b = appendString(b, fmt.Sprintf("the attempt is %s, with %d slots released, and that stands; STREAMCAP_AUDIT_LOG could not be written, the service's log has the entry",
		entry.result, len(entry.ids)))
	b = fmt.Appendf(b, `,"released":%d,"ids":`, len(entry.ids))
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(http.StatusInternalServerError)
	_, _ = w.Write(append(appendStrings(b, entry.ids), '}')) // the caller has left
}

// release releases what the order names. All of a user's slots are listed and released by their ids, until a list was
// whole: a slot that is granted meanwhile may stay. The role is the one that met the error.
func (a *admin) release(ctx context.Context, order releaseOrder) (done slotstore.Releases, role string, err error) {
	if order.id != "" {
		done, err = a.store.Release(ctx, slotstore.ID{User: order.user, Request: order.id})
		return done, slotstore.RoleRelease, err
	}
	for range releaseRounds {
		slots, err := a.store.Slots(ctx, order.user)
		if err != nil {
			return done, slotstore.RoleAdmin, err
		}
		ids := make([]slotstore.ID, len(slots))
		for i, slot := range slots {
			ids[i] = slotstore.ID{User: order.user, Request: slot.Request}
		}
		part, err := a.store.Release(ctx, ids...)
		done.Released = append(done.Released, part.Released...)
		done.Absent += part.Absent
		done.Unrecorded = append(done.Unrecorded, part.Unrecorded...)
		if err != nil || len(slots) < listedMost {
			return done, slotstore.RoleRelease, err
		}
	}
	return done, slotstore.RoleRelease, nil
}

// readOrder understands the request. The order holds what could be read of it, also where it is refused.
func readOrder(w http.ResponseWriter, r *http.Request) (releaseOrder, *problem) {
	var order releaseOrder
	refuse := func(status int, detail string) (releaseOrder, *problem) { return order, &problem{status, detail} }
	query, err := url.ParseQuery(r.URL.RawQuery)
	order.user = query.Get("user")
	if err != nil {
		return refuse(http.StatusBadRequest, "the query is not percent-encoded as it should be")
	}
	// A form of another site can't send this type.
	if mediaType, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); mediaType != "application/json" {
		return refuse(http.StatusUnsupportedMediaType, `send {"user":"…","reason":"…"}, or with "id", as application/json`)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReleaseBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return refuse(http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", maxReleaseBytes))
	}
	if err != nil {
		return refuse(http.StatusBadRequest, "the body did not arrive whole")
	}
	fields, err := releaseFields(body)
	if user, ok := fields["user"]; ok {
		if len(query["user"]) > 0 && err == nil {
			err = errors.New("the user comes twice, in the query and in the body")
		}
		order.user = user
	} else if len(query["user"]) > 1 && err == nil {
		err = errors.New("the user comes twice")
	}
	order.id, order.reason = fields["id"], strings.TrimSpace(fields["reason"])
	if err != nil {
		return refuse(http.StatusBadRequest, err.Error())
	}
	user, err := parseUser(order.user)
	if err != nil {
		return refuse(http.StatusBadRequest, err.Error())
	}
	order.user = user
	if id, ok := fields["id"]; ok {
		if _, err := parseRequestID(id); err != nil {
			return refuse(http.StatusBadRequest, err.Error()+`; leave "id" out to release all`)
		}
	}
	switch {
	case strings.IndexFunc(order.reason, unicode.IsGraphic) < 0:
		return refuse(http.StatusBadRequest, "a reason is required; it is kept in the audit trail")
	case utf8.RuneCountInString(order.reason) > maxReason:
		return refuse(http.StatusBadRequest, fmt.Sprintf("the reason has more than %d characters", maxReason))
	}
	return order, nil
}

// releaseFields reads {"user":"…","id":"…","reason":"…"}, with the bytes of its strings. It is strict: a misspelt or
// empty id must not release all. The fields are those before the mistake.
func releaseFields(body []byte) (map[string]string, error) {
	if !json.Valid(body) {
		return nil, errors.New("the body is not valid JSON")
	}
	order := gjson.ParseBytes(body)
	if !order.IsObject() {
		return nil, errors.New("the body is not a JSON object")
	}
	fields := make(map[string]string)
	var err error
	order.ForEach(func(key, value gjson.Result) bool {
		name := key.Str
		_, twice := fields[name]
		switch {
		case name != "user" && name != "id" && name != "reason":
			err = fmt.Errorf("there is no field %q; there are user, id and reason", cut(name, 64))
		case twice:
			err = fmt.Errorf("the field %q comes twice", name)
		case value.Type != gjson.String:
			err = fmt.Errorf("the field %q is no string", name)
		case isTorn(value.Raw):
			err = fmt.Errorf("the field %q holds %w", name, errTorn)
		default:
			fields[name] = value.Str
		}
		return err == nil
	})
	return fields, err
}
