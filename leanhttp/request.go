package leanhttp

import (
	"bytes"
	"strings"
)

// understand takes a request that is whole, alone, without a body, and without a field that asks for anything of the
// connection. It is false for all others, be they well-formed or not.
func (c *conn) understand(text []byte) bool {
	line, fields, _ := bytes.Cut(text, crlf)
	if !c.understandLine(line) {
		return false
	}
	clear(c.request.Header)
	c.hosts = 0
	for {
		field, rest, ended := bytes.Cut(fields, crlf)
		switch {
		case !ended:
			return false
		case len(field) == 0:
			return len(rest) == 0 && c.hosts == 1
		case !c.understandField(field):
			return false
		}
		fields = rest
	}
}

//nolint:gochecknoglobals // constants
var (
	crlf, space, colon = []byte("\r\n"), []byte(" "), []byte(":")

	methods = []string{"GET", "POST", "PUT", "DELETE"}

	// asking are the fields that say how the request goes on, or what becomes of the connection, each with the value that
	// asks for nothing.
	asking = []struct{ name, nothing string }{
		{"Connection", "keep-alive"},
		{"Content-Length", "0"},
		{name: "Expect"},
		{name: "Trailer"},
		{name: "Transfer-Encoding"},
		{name: "Upgrade"},
	}
)

// understandLine takes a path of lower-case letters and slashes, with nothing behind it.
func (c *conn) understandLine(line []byte) bool {
	method, target, _ := bytes.Cut(line, space)
	path, version, _ := bytes.Cut(target, space)
	if string(version) != "HTTP/1.1" || len(path) == 0 || path[0] != '/' {
		return false
	}
	for _, b := range path {
		if b != '/' && (b < 'a' || b > 'z') {
			return false
		}
	}
	if c.request.RequestURI != string(path) {
		c.request.RequestURI = string(path)
		c.request.URL.Path = c.request.RequestURI
	}
	for _, known := range methods {
		if string(method) == known {
			c.request.Method = known
			return true
		}
	}
	return false
}

func (c *conn) understandField(field []byte) bool {
	name, value, ok := bytes.Cut(field, colon)
	if !ok || len(name) == 0 {
		return false
	}
	for _, b := range name {
		if b != '-' && (b < '0' || b > '9') && (b|0x20 < 'a' || b|0x20 > 'z') {
			return false
		}
	}
	value = bytes.Trim(value, " ")
	for _, b := range value {
		if b < ' ' || b == 0x7f {
			return false
		}
	}
	for i, read := range c.server.Reads {
		if is(name, read) {
			return c.keep(i, value)
		}
	}
	if is(name, "Host") {
		return c.keepHost(value)
	}
	for _, field := range asking {
		if is(name, field.name) {
			return field.nothing != "" && is(value, field.nothing)
		}
	}
	return true
}

func is(text []byte, word string) bool {
	return len(text) == len(word) && strings.EqualFold(string(text), word)
}

// keep takes a field that the handler reads, once. A value that the connection's last request had too takes no memory.
func (c *conn) keep(i int, value []byte) bool {
	name := c.server.Reads[i]
	if _, twice := c.request.Header[name]; twice {
		return false
	}
	if c.values[i] != string(value) {
		c.values[i] = string(value)
	}
	c.request.Header[name] = c.values[i : i+1 : i+1]
	return true
}

// keepHost takes a name or an address, with or without a port.
func (c *conn) keepHost(value []byte) bool {
	for _, b := range value {
		if b != '-' && b != '.' && b != ':' && (b < '0' || b > '9') && (b|0x20 < 'a' || b|0x20 > 'z') {
			return false
		}
	}
	if c.request.Host != string(value) {
		c.request.Host = string(value)
	}
	c.hosts++
	return len(value) > 0
}
