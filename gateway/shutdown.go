package gateway

import (
	"context"
	"errors"

	"github.com/vancetope/mcp-lease-gateway/internal/h1"
)

// StopReady makes /readyz fail, so that no new clients are sent here while the
// old ones are still answered.
func (s *Server) StopReady() { s.stopping.Store(true) }

// CloseClients takes no new connections from clients, waits until ctx ends for
// the requests under way and then cuts what is left.
func (s *Server) CloseClients(ctx context.Context) error {
	return closeServer(ctx, s.client)
}

// CloseInternal does the same for the internal listener. It goes last: other
// pods and probes are answered while leases are given back.
func (s *Server) CloseInternal(ctx context.Context) error { return closeServer(ctx, s.internal) }

func closeServer(ctx context.Context, srv *h1.Server) error {
	err := srv.Shutdown(ctx)
	if err != nil && ctx.Err() != nil {
		return errors.Join(err, srv.Close())
	}
	return err
}
