package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/leodido/go-syslog/v4"
	"github.com/leodido/go-syslog/v4/rfc3164"
	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"streamcap/rawconn"
	"streamcap/slotstore"
)

// nginxLog releases the slot of each request that nginx says has ended. One goroutine only reads, so that the socket has
// room; another releases what has come since it last did.
type nginxLog struct {
	conn      net.PacketConn
	store     slotstore.Store
	unsettled *unsettled
	trouble   *trouble
	metrics   *metrics
	log       zerolog.Logger
	bad       throttle // one line a minute
}

const (
	// datagramMost is more than nginx puts into one line: it cuts them at 2 KiB.
	datagramMost = 64 << 10
	// nginxLogQueue is how many releases wait for the store at the most. What is over it is left to the TTL.
	nginxLogQueue = 65_536
	// nginxLogBatch is how many are read before they are handed on.
	nginxLogBatch = 500
	// nginxLogPause lets lines gather in the socket, which has room for hundreds: a user who starts her next stream takes longer.
	nginxLogPause = time.Millisecond
	// nginxLogDrain is how long reading goes on at the end, many times what a full socket takes.
	nginxLogDrain = 250 * time.Millisecond
)

// run reads until end, and then releases what it has read.
func (n *nginxLog) run() {
	defer n.conn.Close() //nolint:errcheck // nobody reads from it any more
	ended := make(chan []slotstore.ID, 1)
	var releasing sync.WaitGroup
	releasing.Go(func() { n.release(ended) })
	n.read(ended)
	close(ended)
	releasing.Wait()
}

// end has run read what stands in the socket, and end.
func (n *nginxLog) end() { _ = n.conn.SetReadDeadline(time.Now().Add(nginxLogDrain)) }

// read hands on what has ended, with what nobody has taken since the last time.
func (n *nginxLog) read(ended chan []slotstore.ID) {
	parser := rfc3164.NewParser(rfc3164.WithBestEffort())
	datagrams := rawconn.NewDatagrams(n.conn, datagramMost)
	for {
		var ids []slotstore.ID
		lines := 0
		err := datagrams.Read(func(datagram []byte) bool {
			if id, err := parseEnd(parser, datagram); err == nil {
				ids = append(ids, id)
			} else if !errors.Is(err, errNothingToRelease) {
				n.mistake(err)
			}
			lines++
			return lines == nginxLogBatch
		})
		if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			n.mistake(err)
		}
		select {
		case waiting := <-ended:
			ids = append(waiting, ids...)
		default:
		}
		if over := len(ids) - nginxLogQueue; over > 0 { // their slots expire by themselves
			n.metrics.shed.add(slotstore.RoleRelease, over)
			ids = ids[:nginxLogQueue]
		}
		ended <- ids
		if lines < nginxLogBatch {
			time.Sleep(nginxLogPause)
		}
	}
}

func (n *nginxLog) mistake(err error) {
	n.metrics.nginxLogBad.Inc()
	n.bad.say("", func(count int) {
		n.log.Warn().Err(err).Int("count", count).Msg("an end-of-request line can't be read; is nginx's log_format the one of nginx.conf.example?")
	})
}

// errNothingToRelease is for a request that had no user or no id, and so no slot.
var errNothingToRelease = errors.New("no user or no request id")

// parseEnd reads a datagram as nginx writes it: RFC 3164 with or without a host name, and JSON behind it.
func parseEnd(parser syslog.Machine, datagram []byte) (slotstore.ID, error) {
	message, err := parser.Parse(datagram)
	line, ok := message.(*rfc3164.SyslogMessage)
	if !ok || line.Message == nil {
		return slotstore.ID{}, errors.Join(errors.New("not a syslog line with a message"), err)
	}
	body := []byte(*line.Message)
	if !json.Valid(body) {
		return slotstore.ID{}, errors.New("not valid JSON behind the tag")
	}
	slot := gjson.ParseBytes(body)
	id, err := parseSlot(slot)
	if errors.Is(err, errNoUser) || errors.Is(err, errNoRequestID) {
		if slot.Get("user").Exists() && slot.Get("id").Exists() {
			return slotstore.ID{}, errNothingToRelease
		}
	}
	return id, err
}

func (n *nginxLog) release(ended <-chan []slotstore.ID) {
	for ids := range ended {
		done, err := n.store.Release(context.Background(), ids...)
		n.metrics.released(sourceNginx, done)
		if err != nil {
			n.unsettled.keepReleases(sourceNginx, done.Unrecorded)
			n.trouble.failed(slotstore.RoleRelease, err)
		}
	}
}
