package reportpage

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"io"
	"time"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"github.com/duesday/duesday/charges"
)

// Neither is escaped: both are the program's own.
var (
	//go:embed page.css
	style string
	//go:embed patterns.svg
	patterns string
)

// Write writes the page. At is when the overview was read, version the
// program's. Nothing in the overview is trusted: customers and banks write texts
// into it.
func Write(out io.Writer, period charges.Period, o charges.Overview, at time.Time, version string) error {
	v := newView(period, o)
	v.At, v.Version = moment(at), version
	return page(v).Render(out)
}

// page is built of nodes, not by html/template: a linker that finds a template
// executed keeps every method of every type for it, which is a quarter of the
// binary.
func page(v view) g.Node {
	return h.Doctype(h.HTML(h.Lang("en"), head(v), h.Body(
		g.Raw(patterns),
		header(v),
		h.Main(
			alert(v.Look),
			moneySection(v.Money),
			outcomesSection(v),
			timeSection(v.Time),
			reasonsSection(v.Reasons, v.Others),
			lookSection(v.Look),
		),
		h.Footer(h.P(
			g.Textf("Read from the ledger on %s by duesday %s. Times are in UTC. Every customer's line: ", v.At, v.Version),
			h.Code(g.Textf("duesday report --period %s --format csv", v.Period)),
		)),
	)))
}

func head(v view) g.Node {
	sum := sha256.Sum256([]byte(style))
	policy := "default-src 'none'; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'; base-uri 'none'; form-action 'none'"
	return h.Head(
		h.Meta(h.Charset("utf-8")),
		h.Meta(g.Attr("http-equiv", "Content-Security-Policy"), h.Content(policy)),
		h.Meta(h.Name("referrer"), h.Content("no-referrer")),
		h.Meta(h.Name("viewport"), h.Content("width=device-width, initial-scale=1")),
		h.Meta(h.Name("color-scheme"), h.Content("light dark")),
		h.TitleEl(g.Text("Billing period "+v.Period)),
		h.StyleEl(g.Raw(style)),
	)
}

func header(v view) g.Node {
	class, sign := "is-open", "◷"
	if v.Settled {
		class, sign = "is-settled", "✓"
	}
	return h.Header(
		h.P(h.Class("brand"), g.Text("Duesday · billing period "+v.Period)),
		h.H1(g.Text(v.Month)),
		h.P(h.Class("lead"), g.Text(v.Sentence)),
		h.P(h.Class("state "+class), h.Span(h.Aria("hidden", "true"), g.Text(sign)), g.Text(" "+v.State)),
	)
}

func alert(looks []look) g.Node {
	if len(looks) == 0 {
		return nil
	}
	return h.Nav(h.Class("alert"), h.Aria("label", "What to look at"),
		h.Strong(g.Text("To look at:")),
		g.Map(looks, func(l look) g.Node {
			return g.Group{g.Text(" "), h.A(h.Href("#look-"+l.Class), g.Text(l.Dues+" "+l.Brief))}
		}),
	)
}
