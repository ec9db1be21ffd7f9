package config

import "github.com/vancetope/mcp-lease-gateway/config/credential"

// Auth is a credential for an upstream.
type Auth = credential.Auth

// AuthType is how a credential is sent.
type AuthType = credential.AuthType

// The types that server documents treat apart.
const (
	AuthNone    = credential.None
	AuthForward = credential.Forward
)
