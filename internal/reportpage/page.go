package reportpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"io"
	"time"

	"github.com/duesday/duesday/charges"
)

var (
	//go:embed page.html
	source string
	//go:embed page.css
	style string

	page = template.Must(template.New("page").Parse(source))
)

// Write writes the page. At is when the overview was read, version the
// program's. Nothing in the overview is trusted: customers and banks write texts
// into it.
func Write(out io.Writer, period charges.Period, o charges.Overview, at time.Time, version string) error {
	v := newView(period, o)
	v.At, v.Version = moment(at), version
	v.Style = template.CSS(style)
	sum := sha256.Sum256([]byte(style))
	v.StyleHash = base64.StdEncoding.EncodeToString(sum[:])
	return page.Execute(out, v)
}
