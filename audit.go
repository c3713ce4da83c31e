package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

// timeLayout is how the log, the audit trail and the API write a time: RFC 3339 with milliseconds, in UTC.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// auditEntry is one attempt of an operator to release something: a line of the trail.
type auditEntry struct {
	time     time.Time
	operator string
	peer     string // the address of the connection, whatever a header says
	user     string // empty where the request named none
	reason   string
	ids      []string // that were released
	result   string   // one of the results below
}

// The results of an attempt. Failed means that the store could not answer: some slots may be released all the same.
const (
	auditReleased = "released"
	auditRefused  = "refused"
	auditFailed   = "failed"
)

// line is the entry as JSON, without a line end. A user keeps her bytes.
func (e auditEntry) line() []byte {
	b := appendString([]byte(`{"time":`), e.time.UTC().Format(timeLayout))
	for _, field := range []struct{ name, value string }{
		{"operator", e.operator}, {"peer", e.peer}, {"user", e.user}, {"reason", e.reason},
	} {
		b = appendString(append(b, `,"`+field.name+`":`...), field.value)
	}
	b = appendStrings(append(b, `,"ids":`...), e.ids)
	b = appendString(append(b, `,"result":`...), e.result)
	return append(b, '}')
}

// appendStrings writes a JSON array of strings.
func appendStrings(b []byte, all []string) []byte {
	b = append(b, '[')
	for i, s := range all {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, s)
	}
	return append(b, ']')
}

const (
	// auditShown is how many entries people are shown.
	auditShown = 100
	// auditTail is how much of the file's end is read back after a restart.
	auditTail = 1 << 20
	// auditPatience is how long a pipe that nobody empties may take a line.
	auditPatience = time.Second
)

// auditLog keeps the trail: each line is on disk before it is answered. The file is looked up by its path for each line,
// so that a rotated one is never written to again. Without a path the trail is the service's log.
type auditLog struct {
	path string
	log  zerolog.Logger
	open func(path string) (trailFile, error)

	mu   sync.Mutex
	file trailFile // nil: not open
	disk bool      // it is a regular file, not a pipe or a device
	torn bool      // our last write ended within a line

	// A mutex of its own, so that whoever reads does not wait for a disk.
	recentMu sync.Mutex
	recent   [][]byte // the last auditShown lines, oldest first
}

// trailFile is what the trail asks of an [os.File].
type trailFile interface {
	io.WriteCloser
	Stat() (fs.FileInfo, error)
	SetWriteDeadline(t time.Time) error
	Sync() error
}

// openTrail opens the file at the path, and makes it where there is none. A pipe without a reader is an error, and not a
// reason to wait.
func openTrail(path string) (trailFile, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NONBLOCK, 0o600)
}

// openAudit reads back the end of the trail. That the file can't be opened is said, and is an error only once there is
// something to write: nginx is served all the same.
func openAudit(path string, log zerolog.Logger) *auditLog {
	a := &auditLog{path: path, log: log, open: openTrail}
	if path == "" {
		return a
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	err := a.reopen()
	if err == nil {
		a.recent, err = readBack(path)
	}
	if err != nil {
		log.Error().Str("event", "audit").Str("path", path).Err(err).Msg("the audit log can't be opened; releases will be answered with audit_failed")
	}
	return a
}

// write adds an entry. With an error the entry is in the service's log.
func (a *auditLog) write(entry auditEntry) error {
	line := entry.line()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.show(line)
	if a.path == "" {
		a.tell(entry, "info", nil, "an operator asked for a release")
		return nil
	}
	err := a.append(line)
	if err != nil {
		a.tell(entry, "error", err, "the audit log could not be written")
	}
	return err
}

// tell writes the entry to the service's log, at a level that nothing filters. What people and clients chose keeps its
// bytes.
func (a *auditLog) tell(entry auditEntry, level string, err error, message string) {
	a.log.Log().Str("level", level).Str("event", "audit").Str("operator", entry.operator).Str("peer", entry.peer).
		RawJSON("user", appendString(nil, entry.user)).RawJSON("reason", appendString(nil, entry.reason)).
		Strs("ids", entry.ids).Str("result", entry.result).Err(err).Msg(message)
}

// show takes a line among those that people are shown.
func (a *auditLog) show(line []byte) {
	a.recentMu.Lock()
	defer a.recentMu.Unlock()
	a.recent = append(a.recent[max(0, len(a.recent)-auditShown+1):], line)
}

// append writes the line with one write, which O_APPEND keeps whole beside those of other processes. Where the file ends
// within a line, because a disk was full or a process died, ours does not become a part of it.
func (a *auditLog) append(line []byte) error {
	if a.moved() {
		if err := a.reopen(); err != nil {
			return err
		}
	}
	text := slices.Concat(line, []byte{'\n'})
	if a.torn || endsWithinLine(a.path) {
		text = slices.Concat([]byte{'\n'}, text)
	}
	_ = a.file.SetWriteDeadline(time.Now().Add(auditPatience)) // pipes alone have one
	if n, err := a.file.Write(text); err != nil {
		a.torn = a.torn || n > 0
		return err
	}
	a.torn = false
	if !a.disk {
		return nil
	}
	return a.file.Sync()
}

// moved says whether the path is another file than the one that is open: it was rotated, or nothing is open yet.
func (a *auditLog) moved() bool {
	if a.file == nil {
		return true
	}
	open, openErr := a.file.Stat()
	there, thereErr := os.Stat(a.path)
	return openErr != nil || thereErr != nil || !os.SameFile(open, there)
}

// reopen opens what is at the path now.
func (a *auditLog) reopen() error {
	if a.file != nil {
		_ = a.file.Close() // every line in it is synced
		a.file = nil
	}
	file, err := a.open(a.path)
	if err != nil {
		return err
	}
	stat, err := file.Stat()
	if err != nil {
		return errors.Join(err, file.Close())
	}
	a.file, a.disk, a.torn = file, stat.Mode().IsRegular(), false
	if directory, err := os.Open(filepath.Dir(a.path)); err == nil {
		_ = directory.Sync() // so that a new file's name lasts as long as its lines; not every file system can
		_ = directory.Close()
	}
	return nil
}

// endsWithinLine says whether somebody's line in the file has no end, and gets none: a line that another process is
// about to write shows page by page.
func endsWithinLine(path string) bool {
	for range 10 {
		tail, _ := readTail(path, 1) // a file that we may not read is taken to be whole
		if len(tail) == 0 || tail[0] == '\n' {
			return false
		}
		time.Sleep(5 * time.Millisecond)
	}
	return true
}

// readTail reads so many of the last bytes of a regular file. A pipe or a device gives none: reading takes away from it.
func readTail(path string, most int64) ([]byte, error) {
	stat, err := os.Stat(path)
	if err != nil || !stat.Mode().IsRegular() {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read
	return io.ReadAll(io.NewSectionReader(file, max(0, stat.Size()-most), most))
}

// readBack is the last entries of the file. Lines that are none are left out, also the one that the tail begins within.
func readBack(path string) ([][]byte, error) {
	tail, err := readTail(path, auditTail)
	if errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("the trail can't be read back: %w", err)
	}
	if err != nil {
		return nil, err
	}
	var entries [][]byte
	for line := range bytes.Lines(tail) {
		line = bytes.TrimSpace(line)
		if isEntry(line) {
			entries = append(entries, bytes.Clone(line))
		}
	}
	return slices.Clone(entries[max(0, len(entries)-auditShown):]), nil
}

func isEntry(line []byte) bool {
	if !json.Valid(line) {
		return false
	}
	entry := gjson.ParseBytes(line)
	result := entry.Get("result").String()
	return entry.IsObject() && entry.Get("ids").IsArray() && entry.Get("time").Type == gjson.String &&
		(result == auditReleased || result == auditRefused || result == auditFailed)
}

// entries are the last lines, newest first.
func (a *auditLog) entries() [][]byte {
	a.recentMu.Lock()
	defer a.recentMu.Unlock()
	entries := slices.Clone(a.recent)
	slices.Reverse(entries)
	return entries
}

// releasedIDs are the request ids of slots.
func releasedIDs(slots []slotstore.ID) []string {
	ids := make([]string, len(slots))
	for i, slot := range slots {
		ids[i] = slot.Request
	}
	return ids
}
