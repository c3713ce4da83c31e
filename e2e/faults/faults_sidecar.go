package main

import (
	"context"
	"syscall"
	"time"
)

// sidecarFaults are the sidecar's own troubles. What nginx's acquire location waits for a hung sidecar is its
// proxy_read_timeout of 300 ms, so that the first byte comes a little after those.
func sidecarFaults() []fault {
	const hung = 350 * time.Millisecond
	shortTTL := func(*machine) setup { return setup{ttl: 4 * time.Second} }
	return []fault{
		{name: "SIGKILL of the sidecar", short: time.Second, full: 3 * time.Second, world: shortTTL, do: sidecarKilled, sidecar: true, loses: true},
		{name: "SIGSTOP of the sidecar", full: 5 * time.Second, do: sidecarStopped, sidecar: true, byte: hung},
		{name: "sidecar restarted again and again", full: 30 * time.Second, world: shortTTL, do: sidecarRestarts, sidecar: true, loses: true},
	}
}

func sidecarKilled(ctx context.Context, s *stage) (time.Time, error) {
	s.load.leave(true)
	if err := s.sidecar.end(syscall.SIGKILL); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	err := s.startSidecarAgain(ctx, s.sidecar)
	s.load.back()
	return time.Now(), err
}

func sidecarStopped(ctx context.Context, s *stage) (time.Time, error) {
	s.load.leave(false)
	if err := s.sidecar.signal(syscall.SIGSTOP); err != nil {
		return time.Time{}, err
	}
	pause(ctx, s.hold)
	err := s.sidecar.signal(syscall.SIGCONT)
	s.load.back()
	return time.Now(), err
}

// sidecarRestarts restarts it five times within s.hold, as a deploy does.
func sidecarRestarts(ctx context.Context, s *stage) (time.Time, error) {
	const times = 5
	var err error
	for range times {
		s.load.leave(true)
		err = s.restart(ctx, s.sidecar, syscall.SIGTERM)
		s.load.back()
		if err != nil {
			break
		}
		pause(ctx, s.hold/times)
	}
	return time.Now(), err
}
