package leanhttp

import (
	"net/http"
	"slices"
	"strconv"
	"time"
)

// response implements [http.ResponseWriter]. It is written whole when the handler has returned.
type response struct {
	header http.Header
	status int // 0: not said yet
	body   []byte
	out    []byte

	second int64  // since 1970
	date   string // that second's
}

func (r *response) reset() {
	clear(r.header)
	r.status, r.body = 0, r.body[:0]
}

func (r *response) Header() http.Header { return r.header }

func (r *response) WriteHeader(status int) {
	if r.status == 0 {
		r.status = status
	}
}

func (r *response) Write(body []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	r.body = append(r.body, body...)
	return len(body), nil
}

// text is what goes over the wire; last says that the connection is closed behind it.
func (r *response) text(last bool) []byte {
	r.WriteHeader(http.StatusOK)
	out := r.out[:0]
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(r.status), 10)
	out = append(out, ' ')
	out = append(out, http.StatusText(r.status)...)
	out = append(out, "\r\n"...)
	names := make([]string, 0, 16)
	for name := range r.header {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		for _, value := range r.header[name] {
			out = appendField(out, name, value)
		}
	}
	if now := time.Now(); now.Unix() != r.second {
		r.second, r.date = now.Unix(), now.UTC().Format(http.TimeFormat)
	}
	out = appendField(out, "Date", r.date)
	if r.status != http.StatusNoContent {
		out = append(out, "Content-Length: "...)
		out = strconv.AppendInt(out, int64(len(r.body)), 10)
		out = append(out, "\r\n"...)
	}
	if last {
		out = appendField(out, "Connection", "close")
	}
	out = append(out, "\r\n"...)
	out = append(out, r.body...)
	r.out = out
	return out
}

func appendField(out []byte, name, value string) []byte {
	out = append(out, name...)
	out = append(out, ": "...)
	out = append(out, value...)
	return append(out, "\r\n"...)
}
