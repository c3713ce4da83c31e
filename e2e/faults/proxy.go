package main

import (
	"io"
	"net"
	"sync"
	"time"
)

// proxy stands between the sidecar and Redis and spoils what Redis answers. (Shopify/toxiproxy can do all of it but the
// nonsense; for these lines it would bring protobuf and Prometheus libraries of 2022 into go.mod.)
type proxy struct {
	listener net.Listener
	upstream string

	mu    sync.Mutex
	spoil spoiler // nil: answers pass
	open  map[net.Conn]struct{}
	work  sync.WaitGroup
}

// spoiler takes what Redis answered and says what the sidecar gets, how much later, and whether the connection ends then.
type spoiler func(answer []byte) (instead []byte, later time.Duration, cut bool)

func startProxy(upstream string) (*proxy, error) {
	listener, err := net.Listen("tcp", freeAddress("127.0.0.1"))
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: listener, upstream: upstream, open: make(map[net.Conn]struct{})}
	p.work.Go(p.accept)
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

// use spoils answers from now on, on connections that are open, too; nil stops it.
func (p *proxy) use(spoil spoiler) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.spoil = spoil
}

func (p *proxy) spoiler() spoiler {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.spoil
}

func (p *proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.upstream)
		if err != nil {
			_ = client.Close() // as Redis itself would have refused it
			continue
		}
		p.mu.Lock()
		p.open[client], p.open[server] = struct{}{}, struct{}{}
		p.mu.Unlock()
		p.work.Go(func() {
			defer p.forget(client, server)
			_, _ = io.Copy(server, client) // an end is an end, whoever made it
		})
		p.work.Go(func() {
			defer p.forget(client, server)
			p.answers(client, server)
		})
	}
}

// answers hands on what the server says. What is delayed waits in a queue: a delay is no bandwidth.
func (p *proxy) answers(client, server net.Conn) {
	type chunk struct {
		bytes []byte
		at    time.Time
		cut   bool
	}
	chunks := make(chan chunk, 1024)
	p.work.Go(func() {
		defer p.forget(client, server)
		for c := range chunks {
			time.Sleep(time.Until(c.at))
			if _, err := client.Write(c.bytes); err != nil || c.cut {
				p.forget(client, server)
			}
		}
	})
	defer close(chunks)
	for {
		buffer := make([]byte, 16<<10)
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		c := chunk{bytes: buffer[:n], at: time.Now()}
		if spoil := p.spoiler(); spoil != nil {
			instead, later, cut := spoil(c.bytes)
			c = chunk{bytes: instead, at: c.at.Add(later), cut: cut}
		}
		chunks <- c
	}
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		_ = conn.Close() // it may be closed already
		delete(p.open, conn)
	}
}

func (p *proxy) close() {
	_ = p.listener.Close() // nobody else closes it
	p.mu.Lock()
	for conn := range p.open {
		_ = conn.Close() // likewise
	}
	p.mu.Unlock()
	p.work.Wait()
}
