//go:build external

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/vancetope/mcp-lease-gateway/config/document"
	"github.com/vancetope/mcp-lease-gateway/testservers/mongo"
	process "github.com/vancetope/mcp-lease-gateway/testservers/pod"
)

// trials is how many projects there are to change a cap in.
const trials = 5

func trialProject(n int) string { return fmt.Sprintf("p%d", n) }

// trialLease is the lease document of a trial's project.
func trialLease(project string) string {
	return "acme/" + project + "/_vance/config/lease/browser.yaml"
}

// trialDocuments are a server and its lease, and for each trial a project that
// caps itself at 1.
func trialDocuments(url string) map[string]string {
	docs := documentsFor(url, "project: 10")
	for n := range trials {
		docs[trialLease(trialProject(n))] = projectCap(1)
	}
	return docs
}

func projectCap(n int) string { return fmt.Sprintf("levels: {project: %d}\n", n) }

// told counts the lines that a pod's audit has of a changed document.
func told(p *process.Process, doc string) int {
	n := 0
	for line := range strings.Lines(p.Log()) {
		if strings.Contains(line, `"kind":"definition"`) && strings.Contains(line, fmt.Sprintf("%q", doc)) {
			n++
		}
	}
	return n
}

// raised shows that a project's cap which raise sets to 2 is in force at both
// pods as soon as raise returns, with nothing but the telling to bring it about:
// each trial takes a project that neither pod has seen, so that what they keep
// of it is younger than the trial, and counts only if it ends before that can be
// too old. Raise reports whether it knows how the pods were told.
func raised(t *testing.T, a, b *process.Process, raise func(project string) bool) {
	t.Helper()
	for n := range trials {
		project := trialProject(n)
		path := "/mcp/acme/" + project + "/browser"
		began := time.Now()
		open(t, a.URL+path)
		if got := send(t.Context(), "POST", b.URL+path, "", initialize); got.code != "LEASE_BUSY" || !strings.Contains(got.message, "1 of 1") {
			t.Fatalf("a second session before the change: %+v", got)
		}
		known := raise(project)
		if got := send(t.Context(), "POST", b.URL+path, "", initialize); got.session == "" {
			t.Fatalf("a second session after the change, at the pod that refused it before: %+v", got)
		}
		if got := send(t.Context(), "POST", a.URL+path, "", initialize); got.code != "LEASE_BUSY" || !strings.Contains(got.message, "2 of 2") {
			t.Fatalf("a third session after the change, at the pod with the first: %+v", got)
		}
		took := time.Since(began)
		if known && took < document.MaxAge {
			return
		}
		t.Logf("project %s shows nothing: it took %s, and the way is known: %t", project, took, known)
	}
	t.Fatal("no trial shows that the pods were told, and in time")
}

func TestTwoPodsOneCollection(t *testing.T) {
	t.Parallel()
	_, url := upstream(t)
	uri, database := mongo.Database(t)
	client, err := driver.Connect(options.Client().ApplyURI(uri).SetTimeout(30 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.WithoutCancel(t.Context())) }) // it has done its work
	coll := client.Database(database).Collection("documents")
	put := func(doc, text string) {
		t.Helper()
		parts := strings.SplitN(doc, "/", 3)
		at := bson.D{{Key: "tenantId", Value: parts[0]}, {Key: "projectId", Value: parts[1]}, {Key: "path", Value: parts[2]}}
		if _, err := coll.UpdateOne(t.Context(), at, bson.D{{Key: "$set", Value: bson.D{{Key: "content", Value: text}}}}, options.UpdateOne().SetUpsert(true)); err != nil {
			t.Fatal(err)
		}
	}
	for doc, text := range trialDocuments(url) {
		put(doc, text)
	}
	c := process.Config{
		Store:      fmt.Sprintf("kind: mongodb\nuri: %s\ndatabase: %s", uri, database),
		Collection: fmt.Sprintf("uri: %s\ndatabase: %s", uri, database),
	}
	a, b := process.Start(t, c), process.Start(t, c)
	pods := []*process.Process{a, b}
	for _, p := range pods {
		printed(t, p, "documents are watched for changes")
	}
	raised(t, a, b, func(project string) bool {
		put(trialLease(project), projectCap(2))
		for _, p := range pods {
			eventually(t, "a pod sees the change in the collection", func() bool { return told(p, trialLease(project)) > 0 })
		}
		return true
	})
	// Had a pod told the other as well, it would have done so before this change.
	put(leasePath, "name: browser\nlevels: {project: 9}\nttlSeconds: 600\nwaitMs: 0\n")
	for _, p := range pods {
		eventually(t, "a pod sees the next change", func() bool { return told(p, leasePath) > 0 })
		if n := told(p, trialLease(trialProject(0))); n != 1 {
			t.Errorf("a pod's audit has the change %d times:\n%s", n, p.Log())
		}
	}
}

// The documents of both pods are a link to a folder that changes as a whole,
// which their watches see only when they read it periodically: a document of the
// same folder that nobody is told of shows whether they have.
func TestTwoPodsAreToldOfADocument(t *testing.T) {
	t.Parallel()
	const unsaid = "_vance/_tenant/_vance/config/lease/a.yaml" // it comes first in what a watch tells
	_, url := upstream(t)
	docs := trialDocuments(url)
	folder := func(version string) string {
		t.Helper()
		dir := t.TempDir()
		docs[unsaid] = "name: a\n# " + version + "\n"
		for doc, text := range docs {
			file := filepath.Join(dir, doc)
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	uri, database := mongo.Database(t)
	first := folder("the first")
	start := func() *process.Process {
		t.Helper()
		dir := t.TempDir()
		if err := os.Symlink(first, filepath.Join(dir, "documents")); err != nil {
			t.Fatal(err)
		}
		return process.Start(t, process.Config{Dir: dir, Store: fmt.Sprintf("kind: mongodb\nuri: %s\ndatabase: %s", uri, database)})
	}
	a, b := start(), start()
	raised(t, a, b, func(project string) bool {
		docs[trialLease(project)] = projectCap(2)
		next := folder(project)
		seen := told(b, unsaid)
		for _, p := range []*process.Process{a, b} {
			link := filepath.Join(p.Dir, "documents")
			if err := os.Symlink(next, link+".new"); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(link+".new", link); err != nil {
				t.Fatal(err)
			}
		}
		body := fmt.Sprintf(`{"events":[{"op":"UPSERT","tenantId":"acme","projectId":%q,"path":%q}]}`, project, strings.TrimPrefix(trialLease(project), "acme/"+project+"/"))
		if got := send(t.Context(), "POST", a.Internal+"/internal/document/changed", "", body); got.status != 401 {
			t.Errorf("without the token: %+v", got)
		}
		if got := send(t.Context(), "POST", a.Internal+"/internal/document/changed", "", body, "X-Vance-Internal-Token: "+process.Token); got.status != 204 {
			t.Errorf("with the token: %+v", got)
		}
		eventually(t, "the other pod is told", func() bool { return told(b, trialLease(project)) > 0 })
		return told(b, unsaid) == seen
	})
}
