package main

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"sync"

	"github.com/leodido/go-syslog/v4"
	"github.com/leodido/go-syslog/v4/rfc3164"
	"github.com/rs/zerolog"
	"github.com/tidwall/gjson"

	"streamcap/slotstore"
)

// nginxLog releases the slot of each request that nginx says has ended. One goroutine only reads, so that the socket's
// buffer stays empty; another releases what has come since it last did.
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
	// nginxLogBatch is how many are released at once.
	nginxLogBatch = 500
)

// run reads until the connection is closed, and then releases what it has read.
func (n *nginxLog) run() {
	ended := make(chan slotstore.ID, nginxLogQueue)
	var releasing sync.WaitGroup
	releasing.Go(func() { n.release(ended) })
	n.read(ended)
	close(ended)
	releasing.Wait()
}

func (n *nginxLog) read(ended chan<- slotstore.ID) {
	parser := rfc3164.NewParser(rfc3164.WithBestEffort())
	buffer := make([]byte, datagramMost)
	for {
		size, _, err := n.conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		var id slotstore.ID
		if err == nil {
			id, err = parseEnd(parser, buffer[:size])
		}
		switch {
		case errors.Is(err, errNothingToRelease):
		case err != nil:
			n.metrics.nginxLogBad.Inc()
			if count, ok := n.bad.allow(""); ok {
				n.log.Warn().Err(err).Int("count", count).Msg("an end-of-request line can't be read; is nginx's log_format the one of nginx.conf.example?")
			}
		default:
			select {
			case ended <- id:
			default: // its slot expires by itself
				n.metrics.shed.add(slotstore.RoleRelease, 1)
			}
		}
	}
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

func (n *nginxLog) release(ended <-chan slotstore.ID) {
	batch := make([]slotstore.ID, 0, nginxLogBatch)
	for id := range ended {
		batch = append(batch[:0], id)
		for more := true; more && len(batch) < nginxLogBatch; {
			select {
			case id, ok := <-ended:
				if ok {
					batch = append(batch, id)
				}
				more = ok
			default:
				more = false
			}
		}
		done, err := n.store.Release(context.Background(), batch...)
		n.metrics.released(sourceNginx, done)
		if err != nil {
			n.unsettled.keepReleases(sourceNginx, done.Unrecorded)
			n.trouble.failed(slotstore.RoleRelease, err)
		}
	}
}
