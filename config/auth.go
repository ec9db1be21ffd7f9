package config

// AuthType is how a credential is shown to an upstream.
type AuthType string

// The types of Auth.
const (
	AuthNone    AuthType = "none"
	AuthBearer  AuthType = "bearer"
	AuthBasic   AuthType = "basic"
	AuthAPIKey  AuthType = "apiKey"
	AuthOAuth2  AuthType = "oauth2"  // client credentials
	AuthForward AuthType = "forward" // the caller's own
)
