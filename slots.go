package main

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rs/zerolog"

	"streamcap/slotstore"
)

const (
	maxBatchSlots = 10_000
	maxBatchBytes = 2 << 20
	// bodyTimeout is how long a body may take to arrive.
	bodyTimeout = 10 * time.Second
)

// heartbeats keeps slots: POST or PUT /heartbeat.
type heartbeats struct {
	store   slotstore.Store
	caller  slotCaller
	trouble *trouble
	metrics *metrics
	log     zerolog.Logger
	gone    throttle // one line a minute
}

func (h *heartbeats) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ids, many, refusal := h.caller.ids(w, r)
	if refusal != nil {
		refusal.write(w)
		return
	}

	beats, err := h.store.Heartbeat(context.WithoutCancel(r.Context()), ids...)

	h.metrics.beats(beats)
	// A caller that hung up may have given the slot back meanwhile.
	if i := slices.IndexFunc(beats.Gone, notHeld); i >= 0 && !clientLeft(r) {
		id := beats.Gone[i].ID
		h.gone.say("", func(count int) {
			h.log.Warn().Str("user", id.User).Str("id", id.Request).Int("count", count).
				Msg("heartbeat for a slot that is not held; does the backend get nginx's own $request_id?")
		})
	}
	switch {
	case err != nil:
		h.trouble.failed(slotstore.RoleHeartbeat, err)
		h.metrics.failOpen[slotstore.RoleHeartbeat].add(string(slotstore.ReasonOf(err)), 1)
		writeUnrecorded(w, err)
	case many:
		writeJSON(w, http.StatusOK, appendBeats(nil, beats))
	case len(beats.Gone) > 0:
		reason, detail := "not_held", "this slot is not held: it was released, has expired or was never taken"
		if beats.Gone[0].MaxAge {
			reason, detail = "max_age", "this stream is older than STREAMCAP_MAX_STREAM_AGE; its slot is free now"
		}
		w.Header().Set(headerReason, reason)
		problem{status: http.StatusGone, detail: detail}.write(w)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

func notHeld(gone slotstore.Gone) bool { return !gone.MaxAge }

// releases gives slots back: POST, PUT or DELETE /release.
type releases struct {
	store     slotstore.Store
	unsettled *unsettled
	trouble   *trouble
	metrics   *metrics
	caller    slotCaller
}

func (h *releases) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ids, many, refusal := h.caller.ids(w, r)
	if refusal != nil {
		refusal.write(w)
		return
	}

	// A caller that hangs up does not undo her release.
	done, err := h.store.Release(context.WithoutCancel(r.Context()), ids...)

	h.metrics.released(sourceBackend, done)
	released := strconv.Itoa(len(done.Released))
	switch {
	case err != nil:
		h.unsettled.keepReleases(sourceBackend, done.Unrecorded)
		h.trouble.failed(slotstore.RoleRelease, err)
		writeUnrecorded(w, err)
	case many:
		writeJSON(w, http.StatusOK, []byte(`{"released":`+released+`}`))
	default:
		w.Header().Set(headerReleased, released)
		w.WriteHeader(http.StatusNoContent)
	}
}

// writeUnrecorded says: not recorded, keep streaming.
func writeUnrecorded(w http.ResponseWriter, err error) {
	w.Header().Set(headerReason, string(slotstore.ReasonOf(err)))
	w.WriteHeader(http.StatusAccepted)
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the caller has left
}

// slotCaller is what /heartbeat and /release ask of whoever calls them.
type slotCaller struct {
	methods []string
	token   string // empty asks for none
}

// ids understands a request for one slot (headers) or many (a JSON body). Refusals come in the order 405, 401, 413, 400.
func (c slotCaller) ids(w http.ResponseWriter, r *http.Request) (ids []slotstore.ID, many bool, refusal *problem) {
	if !slices.Contains(c.methods, r.Method) {
		allow := strings.Join(c.methods, ", ")
		w.Header().Set("Allow", allow)
		return nil, false, &problem{http.StatusMethodNotAllowed, r.Method + " is not allowed here; use " + allow}
	}
	if !c.authorized(r) {
		w.Header().Set("Www-Authenticate", "Bearer")
		return nil, false, &problem{http.StatusUnauthorized, "send Authorization: Bearer with the value of STREAMCAP_BACKEND_TOKEN"}
	}
	if mediaType, _, _ := mime.ParseMediaType(one(r.Header, "Content-Type")); mediaType == "application/json" {
		ids, refusal = readBatch(w, r)
		return ids, true, refusal
	}
	id, err := parseID(one(r.Header, headerUser), one(r.Header, headerRequestID))
	if err != nil {
		return nil, false, &problem{
			http.StatusBadRequest,
			oneLine(err) + "; name one slot by one X-User-Id and one X-Request-Id header, or many in a body of type application/json",
		}
	}
	return []slotstore.ID{id}, false, nil
}

func (c slotCaller) authorized(r *http.Request) bool {
	if c.token == "" {
		return true
	}
	scheme, token, _ := strings.Cut(one(r.Header, "Authorization"), " ")
	got, want := sha256.Sum256([]byte(strings.TrimSpace(token))), sha256.Sum256([]byte(c.token))
	return strings.EqualFold(scheme, "Bearer") && subtle.ConstantTimeCompare(got[:], want[:]) == 1
}

func readBatch(w http.ResponseWriter, r *http.Request) ([]slotstore.ID, *problem) {
	tooLarge := &problem{
		http.StatusRequestEntityTooLarge,
		fmt.Sprintf("a batch has at most %d slots and %d bytes; send it in parts", maxBatchSlots, maxBatchBytes),
	}
	if r.ContentLength > maxBatchBytes {
		return nil, tooLarge
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBatchBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge
	}
	if err != nil {
		return nil, &problem{http.StatusBadRequest, "the body did not arrive whole"}
	}
	w.Header().Del("Connection") // it was read
	ids, err := parseBatch(body)
	if errors.Is(err, errTooMany) {
		return nil, tooLarge
	}
	if err != nil {
		return nil, &problem{http.StatusBadRequest, oneLine(err)}
	}
	return ids, nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

// problem is a 4xx answer, as application/problem+json (RFC 9457).
type problem struct {
	status int
	detail string
}

func (p problem) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.status)
	body := appendString([]byte(`{"title":`), http.StatusText(p.status))
	body = appendString(append(body, `,"status":`+strconv.Itoa(p.status)+`,"detail":`...), p.detail)
	_, _ = w.Write(append(body, '}')) // the caller has left
}
