package mongostore

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

func TestOpenNeverShowsAPassword(t *testing.T) {
	const secret = "hunter2"
	for name, uri := range map[string]string{
		"no scheme":                    "user:hunter2@localhost/",
		"another scheme":               "postgres://user:hunter2@localhost/",
		"an unescaped @":               "mongodb://user:p@hunter2@localhost/",
		"an unescaped slash":           "mongodb://user:p/hunter2@localhost/",
		"an unescaped colon":           "mongodb://user:p:hunter2@localhost/",
		"a broken escape":              "mongodb://user:hunter2%zz@localhost/",
		"a port that is no number":     "mongodb://user:pass@localhost:hunter2/",
		"an unknown option's value":    "mongodb://user:hunter2@localhost/?w=-3",
		"a secret in an option":        "mongodb://localhost/?tlsCertificateKeyFilePassword=hunter2&tlsCertificateKeyFile=/nowhere",
		"a mechanism without a user":   "mongodb://localhost/?authMechanism=hunter2",
		"a key that does not exist":    "mongodb://user:hunter2@localhost/?tls=true&tlsCAFile=/nowhere",
		"a replica set that is direct": "mongodb://user:hunter2@a,b/?directConnection=true",
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Open(t.Context(), Options{URI: uri, Database: "d"})
			if err == nil {
				t.Fatal("it was opened")
			}
			if strings.Contains(err.Error(), secret) {
				t.Errorf("the password is in: %v", err)
			}
			if !strings.Contains(err.Error(), "store.uri has the form") {
				t.Errorf("does not say what to do: %v", err)
			}
		})
	}
}

func TestOpenWantsURIAndDatabase(t *testing.T) {
	for _, o := range []Options{{URI: "mongodb://localhost/"}, {Database: "d"}} {
		if _, err := Open(t.Context(), o); err == nil {
			t.Errorf("%+v was opened", o)
		}
	}
}

// A server that is away does not keep a pod from starting; its verbs fail, each
// within its deadline.
func TestAServerThatIsAwayIsNoErrorYet(t *testing.T) {
	s, err := Open(t.Context(), Options{URI: "mongodb://user:hunter2@127.0.0.1:1/?connectTimeoutMS=100&serverSelectionTimeoutMS=100", Database: "d"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(t.Context()) }()
	if err := s.Ping(t.Context()); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Fatalf("ping: %v", err)
	}
}

func TestTheURICannotWeakenWhatTheCapDependsOn(t *testing.T) {
	const weak = "mongodb://h/?w=1&journal=false&readPreference=secondaryPreferred&retryWrites=true&retryReads=false"
	got, err := clientOptions(Options{URI: weak, Database: "d"})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case got.WriteConcern == nil || got.WriteConcern.W != "majority" || got.WriteConcern.Journal != nil:
		t.Errorf("write concern %+v", got.WriteConcern)
	case got.ReadPreference == nil || got.ReadPreference.Mode() != readpref.PrimaryMode:
		t.Errorf("read preference %v", got.ReadPreference)
	case got.RetryWrites == nil || *got.RetryWrites || got.MaxAdaptiveRetries == nil || *got.MaxAdaptiveRetries != 0:
		t.Error("the driver repeats writes")
	case got.RetryReads == nil || !*got.RetryReads:
		t.Error("the driver repeats no reads")
	case got.Timeout == nil || *got.Timeout != opTimeout:
		t.Errorf("timeout %v", got.Timeout)
	}
	if majority(true).Level != "majority" || majority(false).Level != "local" {
		t.Error("read concern")
	}
}
