package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"
)

// httpConn is a kept-alive connection that sends requests as bytes and reads of each answer the status alone: bench shares
// the cores with what it measures, and net/http's client would take more of them than the sidecar.
type httpConn struct {
	address string
	conn    net.Conn // nil: to be dialled
	reader  *bufio.Reader
	buffer  []byte
}

// answerWithin bounds one answer, so that a hung peer ends the run with an error.
const answerWithin = 10 * time.Second

// send writes a request, on a new connection where there is none.
func (c *httpConn) send(ctx context.Context, request []byte) error {
	if c.conn == nil {
		conn, err := (&net.Dialer{Timeout: answerWithin}).DialContext(ctx, "tcp", c.address)
		if err != nil {
			return err
		}
		c.conn, c.reader = conn, bufio.NewReader(conn)
	}
	if err := c.conn.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	_, err := c.conn.Write(request)
	return err
}

// status reads one answer. A server that says it closes the connection is dialled anew the next time.
func (c *httpConn) status() (int, error) {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, fmt.Errorf("not a status line: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, fmt.Errorf("not a status line: %q", line)
	}
	length, closes := 0, false
	for {
		line, err = c.reader.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		if value, ok := cutHeader(line, "content-length:"); ok {
			if length, err = strconv.Atoi(string(value)); err != nil {
				return 0, err
			}
		} else if value, ok := cutHeader(line, "connection:"); ok {
			closes = bytes.EqualFold(value, []byte("close"))
		} else if _, ok := cutHeader(line, "transfer-encoding:"); ok {
			return 0, errors.New("the answer is chunked: it is longer than bench expects")
		}
	}
	if _, err = c.reader.Discard(length); err == nil && closes {
		c.close()
	}
	return status, err
}

func cutHeader(line []byte, name string) (value []byte, ok bool) {
	if len(line) < len(name) || !bytes.EqualFold(line[:len(name)], []byte(name)) {
		return nil, false
	}
	return bytes.TrimSpace(line[len(name):]), true
}

func (c *httpConn) do(ctx context.Context, request []byte) (int, error) {
	if err := c.send(ctx, request); err != nil {
		return 0, err
	}
	return c.status()
}

func (c *httpConn) close() {
	if c.conn != nil {
		_ = c.conn.Close() // what it was asked is answered
		c.conn = nil
	}
}

// openLoop is a steady rate of requests over so many connections. Each has its due time, so that a slow answer delays the
// clock of nobody.
type openLoop struct {
	address     string
	connections int
	rate        float64 // requests a second
	length      time.Duration
	request     func(buffer []byte, n int) []byte // the n-th, appended to buffer
	wanted      int                               // its status
	after       func(n int) (request []byte)      // sent behind its answer, not timed; nil: nothing
}

// timings are what an open loop saw.
type timings struct {
	latencies []time.Duration
	unwanted  int // answers with another status
	seconds   float64
}

// run sends what is due within length. An answer's time runs from when its request was due; where bench itself was late
// out of bed, from when it sent it.
func (o openLoop) run(ctx context.Context) (timings, error) {
	var (
		work  sync.WaitGroup
		mu    sync.Mutex
		all   timings
		first error
	)
	total, start := int(o.rate*o.length.Seconds()), time.Now()
	for worker := range o.connections {
		work.Go(func() {
			mine, err := o.connection(ctx, worker, total, start)
			mu.Lock()
			defer mu.Unlock()
			all.latencies = append(all.latencies, mine.latencies...)
			all.unwanted += mine.unwanted
			if first == nil {
				first = err
			}
		})
	}
	work.Wait()
	pause(ctx, time.Until(start.Add(o.length))) // the last one is due a little earlier
	all.seconds = time.Since(start).Seconds()
	slices.Sort(all.latencies)
	return all, first
}

func (o openLoop) connection(ctx context.Context, worker, total int, start time.Time) (timings, error) {
	conn := &httpConn{address: o.address}
	defer conn.close()
	mine := timings{latencies: make([]time.Duration, 0, total/o.connections+1)}
	giveUp := start.Add(o.length + o.length/2 + time.Second) // the rate is out of reach: what is sent is what counts
	for n := worker; n < total && ctx.Err() == nil; n += o.connections {
		due := start.Add(time.Duration(float64(n) / o.rate * float64(time.Second)))
		if wait := time.Until(due); wait > 0 {
			time.Sleep(wait)
			due = time.Now()
		} else if time.Now().After(giveUp) {
			break
		}
		conn.buffer = o.request(conn.buffer[:0], n)
		status, err := conn.do(ctx, conn.buffer)
		if err != nil {
			return mine, fmt.Errorf("request %d to %s: %w", n, o.address, err)
		}
		mine.latencies = append(mine.latencies, time.Since(due))
		if status != o.wanted {
			mine.unwanted++
		}
		if o.after != nil {
			if _, err := conn.do(ctx, o.after(n)); err != nil {
				return mine, err
			}
		}
	}
	return mine, ctx.Err()
}

// quantile is one of sorted times, in milliseconds; of none it is 0.
func quantile(sorted []time.Duration, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := min(int(q*float64(len(sorted))), len(sorted)-1)
	return float64(sorted[at]) / float64(time.Millisecond)
}
