package main

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"streamcap/slotstore"
)

// Header names, as net/http spells the keys of its map.
const (
	headerUser              = "X-User-Id"
	headerRequestID         = "X-Request-Id"
	headerPlan              = "X-Plan"
	headerLimit             = "X-Stream-Limit"
	headerOriginalMethod    = "X-Original-Method"
	headerOriginalURI       = "X-Original-Uri"
	headerRealIP            = "X-Real-Ip"
	headerUserAgent         = "User-Agent"
	headerSlot              = "X-Stream-Slot"
	headerReason            = "X-Stream-Reason"
	headerUsed              = "X-Stream-Used"
	headerHeartbeatInterval = "X-Stream-Heartbeat-Interval"
	headerReleased          = "X-Stream-Released"
)

// publicHeaders are those that the public listener's handlers read.
//
//nolint:gochecknoglobals // a constant list
var publicHeaders = []string{
	headerUser, headerRequestID, headerPlan, headerLimit, headerOriginalMethod, headerOriginalURI, headerRealIP, headerUserAgent,
	"Authorization", "Content-Type",
}

const asciiSpace = " \t\n\v\f\r"

// one is the value of a header that came once; a header that came twice counts as missing.
func one(header http.Header, name string) string {
	if values := header[name]; len(values) == 1 {
		return strings.Trim(values[0], asciiSpace)
	}
	return ""
}

var (
	errNoUser      = errors.New("the user is missing")
	errNoRequestID = errors.New("the request id is missing")
)

// parseUser trims a user and checks it; every way in calls it. A missing one is errNoUser.
func parseUser(raw string) (string, error) {
	user := strings.Trim(raw, asciiSpace)
	switch {
	case user == "", user == "-":
		return "", errNoUser
	case len(user) > 256:
		return "", fmt.Errorf("the user has %d bytes, 256 are allowed", len(user))
	case hasControl(user):
		return "", errors.New("the user holds a control character")
	}
	return user, nil
}

func hasControl(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] == 0x7f {
			return true
		}
	}
	return false
}

// parseRequestID checks a request id; every way in calls it. A missing one is errNoRequestID.
func parseRequestID(id string) (string, error) {
	switch {
	case id == "":
		return "", errNoRequestID
	case len(id) > 128:
		return "", fmt.Errorf("the request id has %d bytes, 128 are allowed", len(id))
	}
	for i := range len(id) {
		c := id[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && strings.IndexByte("._:-", c) < 0 {
			return "", errors.New("the request id holds a character outside A-Z a-z 0-9 . _ : -")
		}
	}
	return id, nil
}

// parseID checks both parts of a slot's name.
func parseID(user, id string) (slotstore.ID, error) {
	user, userErr := parseUser(user)
	id, idErr := parseRequestID(id)
	return slotstore.ID{User: user, Request: id}, errors.Join(userErr, idErr)
}
