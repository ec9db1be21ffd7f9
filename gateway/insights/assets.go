package insights

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"path"
)

var assetTypes = map[string]string{".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}

// asset serves an embedded file. It needs no sign-in: the sign-in page uses it.
func (p *Page) asset(w http.ResponseWriter, r *http.Request) {
	name := path.Base(r.PathValue("file"))
	text, err := files.ReadFile("assets/" + name)
	kind := assetTypes[path.Ext(name)]
	if _, ok := tenantOf(r); err != nil || kind == "" || !ok {
		http.NotFound(w, r)
		return
	}
	sum := sha256.Sum256(text)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-cache") // asked again each time, sent once
	h.Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	_, _ = w.Write(text)
}
