//go:build external

package tex2pdf

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/vancetope/mcp-lease-gateway/testservers/texengine"
)

func TestMain(m *testing.M) {
	if err := texengine.Installed(); err != nil {
		panic(err)
	}
	m.Run()
}

func service(t *testing.T, o Options) (*Server, string) {
	t.Helper()
	o.Dir = t.TempDir()
	s := New(o)
	h := httptest.NewServer(s)
	t.Cleanup(func() { h.Close(); s.Close() })
	return s, h.URL
}

func archive(t *testing.T, files map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for name, text := range files {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, text)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func post(t *testing.T, url, name string, content []byte) (int, map[string]any) {
	t.Helper()
	var b bytes.Buffer
	m := multipart.NewWriter(&b)
	w, err := m.CreateFormFile("zip_file", name)
	if err != nil {
		t.Fatal(err)
	}
	w.Write(content)
	m.Close()
	resp, err := http.Post(url+"/tex2pdf", m.FormDataContentType(), &b)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, decode(t, resp)
}

func decode(t *testing.T, resp *http.Response) map[string]any {
	t.Helper()
	defer resp.Body.Close()
	var v map[string]any
	if err := json.NewDecoder(resp.Body).Decode(&v); err != nil {
		t.Fatal(err)
	}
	return v
}

// outcome polls until the job has ended.
func outcome(t *testing.T, url string, id any) map[string]any {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		resp, err := http.Get(url + "/tex2pdf/status/" + id.(string))
		if err != nil {
			t.Fatal(err)
		}
		if v := decode(t, resp); v["status"] == "completed" || v["status"] == "failed" {
			return v
		}
	}
	t.Fatal("the job does not end")
	return nil
}

func TestCompilesADocument(t *testing.T) {
	s, url := service(t, Options{})
	_, v := post(t, url, "x.zip", archive(t, map[string]string{"a.tex": "%!stats acme/thesis\n\\documentclass{article}\\begin{document}Hello\\end{document}"}))
	if got := outcome(t, url, v["job_id"]); got["status"] != "completed" {
		t.Fatalf("the job ended as %v", got)
	}
	resp, err := http.Get(url + "/tex2pdf/download/" + v["job_id"].(string))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if pdf, _ := io.ReadAll(resp.Body); !bytes.HasPrefix(pdf, []byte("%PDF-")) || resp.Header.Get("ETag") == "" {
		t.Errorf("the download is %d bytes with ETag %q", len(pdf), resp.Header.Get("ETag"))
	}
	for _, group := range []string{"", "acme", "acme/thesis"} {
		if c := s.Engine.Stats()[group]; c.Compiled != 1 || c.Peak != 1 || c.Running != 0 {
			t.Errorf("%q is counted as %+v", group, c)
		}
	}
}

func TestSaysWhatIsWrong(t *testing.T) {
	_, url := service(t, Options{})
	_, v := post(t, url, "x.zip", archive(t, map[string]string{"main.tex": "\\documentclass{article}\\begin{document}\\nonsense\\end{document}"}))
	got := outcome(t, url, v["job_id"])
	if text, _ := got["error"].(string); got["status"] != "failed" || !strings.Contains(text, "Undefined control sequence") {
		t.Errorf("an error in the document ended as %v", got)
	}
	for name, content := range map[string][]byte{"broken": []byte("no zip"), "climbing": archive(t, map[string]string{"../x.tex": "x"})} {
		if status, v := post(t, url, "x.zip", content); status != 200 || v["status"] != "failed" {
			t.Errorf("a %s archive answered %d %v", name, status, v)
		}
	}
	if status, _ := post(t, url, "x.tex", []byte("x")); status != 400 {
		t.Errorf("no zip name answered %d", status)
	}
}

func TestEndsALoopWithAllThatItStarted(t *testing.T) {
	s, url := service(t, Options{Timeout: time.Second})
	_, v := post(t, url, "x.zip", archive(t, map[string]string{"main.tex": "\\documentclass{article}\\begin{document}\\loop\\iftrue\\repeat\\end{document}"}))
	got := outcome(t, url, v["job_id"])
	if got["status"] != "failed" || got["error"] != "compilation timed out" || s.Engine.Running() != 0 {
		t.Errorf("a loop ended as %v with %d running", got, s.Engine.Running())
	}
}

func TestLimitsSubmits(t *testing.T) {
	_, url := service(t, Options{PerMinute: 1})
	post(t, url, "x.zip", []byte("no zip"))
	if status, v := post(t, url, "x.zip", []byte("no zip")); status != 429 || v["detail"] == nil {
		t.Errorf("the second submit answered %d %v", status, v)
	}
}
