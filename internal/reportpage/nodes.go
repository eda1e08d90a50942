package reportpage

import (
	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

func section(title string, content ...g.Node) g.Node {
	return h.Section(h.H2(g.Text(title)), g.Group(content))
}

func quiet(text string) g.Node { return h.P(h.Class("quiet"), g.Text(text)) }

// class may be empty: there is none.
func class(name string) g.Node { return g.If(name != "", h.Class(name)) }

// bdi keeps the direction of a text that came from outside to itself.
func bdi(kind, text string) g.Node { return g.El("bdi", class(kind), g.Text(text)) }

// top is the head of a column, side that of a row.
func top(kind, text string) g.Node {
	return h.Th(h.Scope("col"), class(kind), g.Text(text))
}

func side(content ...g.Node) g.Node { return h.Th(h.Scope("row"), g.Group(content)) }

func cell(kind, text string) g.Node { return h.Td(class(kind), g.Text(text)) }

// attrs are attributes by name and value, in turn.
func attrs(pairs ...string) g.Group {
	var all g.Group
	for i := 0; i < len(pairs); i += 2 {
		all = append(all, g.Attr(pairs[i], pairs[i+1]))
	}
	return all
}

// picture is an SVG as wide as the page, and what it says to who cannot see it.
func picture(kind, height, says string, content ...g.Node) g.Node {
	return h.SVG(attrs("class", kind, "width", "100%", "height", height, "role", "img", "aria-label", says), g.Group(content))
}

// part is a share's part of a bar.
func part(s share, y, height, title string) g.Node {
	if s.Empty {
		return nil
	}
	return g.El("rect", attrs("x", s.X+"%", "y", y, "width", s.W+"%", "height", height, "fill", fill(s.Class)), g.El("title", g.Text(title)))
}

func swatch(status string) g.Node {
	return h.SVG(attrs("class", "swatch", "width", "18", "height", "14", "aria-hidden", "true"),
		g.El("rect", attrs("width", "18", "height", "14", "rx", "2", "fill", fill(status))))
}

// fill refers to a status' pattern in patterns.svg.
func fill(status string) string { return "url(#p-" + status + ")" }
