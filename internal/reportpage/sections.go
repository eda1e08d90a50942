package reportpage

import (
	"slices"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"
)

func moneySection(money []purse) g.Node {
	if len(money) == 0 {
		return nil
	}
	return section("Money", g.Map(money, func(p purse) g.Node {
		collected := "collected, " + p.Percent + " of " + p.Expected + " expected"
		if p.NothingExpected {
			collected = "collected, nothing was expected"
		}
		return h.Article(h.Class("purse"),
			h.H3(bdi("", p.Currency)),
			h.P(h.Class("sum"), h.B(g.Text(p.Collected)), g.Text(" "+collected)),
			picture("bar", "28", p.Collected+" of "+p.Expected+" expected, cap "+p.Cap,
				g.El("rect", attrs("class", "room", "x", "0", "y", "4", "width", "100%", "height", "20", "rx", "3")),
				g.Map(p.Bar, func(s share) g.Node { return part(s, "4", "20", s.Name) }),
				g.El("line", attrs("class", "mark", "x1", p.ExpectedAt+"%", "x2", p.ExpectedAt+"%", "y1", "0", "y2", "28")),
			),
			h.Dl(h.Class("facts"),
				fact(p.Expected, h.Span(h.Class("tick"), h.Aria("hidden", "true")), g.Text("Expected")),
				fact(p.Cap, g.Text("Spend cap, the bar's end")),
				g.If(p.Waiting != "", fact(p.Waiting, g.Text("Still open"))),
				g.If(p.Lost != "", fact(p.Lost, g.Text("Declined or rejected"))),
			),
		)
	}))
}

func fact(value string, name ...g.Node) g.Node {
	return h.Div(h.Dt(name...), h.Dd(g.Text(value)))
}

func outcomesSection(v view) g.Node {
	return section("Outcomes",
		picture("bar", "32", v.Sentence,
			g.El("rect", attrs("class", "room", "x", "0", "y", "2", "width", "100%", "height", "28", "rx", "3")),
			g.Map(v.Outcomes, func(s share) g.Node { return part(s, "2", "28", s.Name+": "+s.Count) }),
		),
		h.Table(h.Class("legend"),
			h.THead(h.Class("away"), h.Tr(top("", "Outcome"), top("", "Meaning"), top("", "Customers"), top("", "Share"))),
			h.TBody(g.Map(v.Outcomes, func(s share) g.Node {
				return h.Tr(g.If(s.Empty, h.Class("none")),
					side(swatch(s.Class), g.Text(" "+s.Name)), cell("means", s.Means), cell("n", s.Count), cell("n", s.Percent))
			})),
			h.TFoot(h.Tr(side(g.Text("All")), cell("means", ""), cell("n", v.Dues), cell("n", ""))),
		),
	)
}

func timeSection(c *chart) g.Node {
	const title = "Charges over time"
	if c == nil {
		return section(title, quiet("No charge has been settled."))
	}
	return section(title, h.Figure(
		h.FigCaption(g.Text("Settled per "+c.Step+", times in UTC")),
		h.Div(h.Class("plot"),
			h.Div(h.Class("scale"), h.Aria("hidden", "true"), h.Span(g.Text(c.Most)), h.Span(g.Text(c.Half)), h.Span(g.Text("0"))),
			picture("time", "150", c.Says,
				g.El("line", attrs("class", "grid", "x1", "0", "x2", "100%", "y1", "0.5", "y2", "0.5")),
				g.If(c.Half != "", g.El("line", attrs("class", "grid", "x1", "0", "x2", "100%", "y1", "50%", "y2", "50%"))),
				g.El("line", attrs("class", "base", "x1", "0", "x2", "100%", "y1", "149.5", "y2", "149.5")),
				g.Map(c.Bars, func(b column) g.Node {
					return g.El("rect", attrs("x", b.X+"%", "y", b.Y+"%", "width", b.W+"%", "height", b.H+"%", "fill", fill(b.Class)),
						g.El("title", g.Text(b.Title)))
				}),
			),
			h.Div(h.Class("ends"), h.Span(g.Text(c.First)), g.If(c.Last != c.First, h.Span(g.Text(c.Last)))),
		),
	))
}

func reasonsSection(all []reason, others string) g.Node {
	const title = "Why charges came to nothing"
	if len(all) == 0 {
		return section(title, quiet("No charge was declined or rejected."))
	}
	return section(title, h.Table(h.Class("reasons"),
		h.THead(h.Tr(top("", "Reason"), top("", "What helps"), top("n", "Customers"),
			h.Th(h.Scope("col"), h.Class("wide"), h.Span(h.Class("away"), g.Text("Share"))))),
		h.TBody(
			g.Map(all, func(r reason) g.Node {
				return h.Tr(
					side(h.Code(bdi("", r.Code)), g.If(r.Why != "", g.Group{h.Br(), h.Span(h.Class("quiet"), g.Text(r.Why))})),
					cell("", r.Helps), cell("n", r.Dues),
					h.Td(h.Class("wide"), h.SVG(attrs("width", "100%", "height", "14", "aria-hidden", "true"),
						g.El("rect", attrs("width", r.W+"%", "height", "14", "rx", "2", "fill", fill(r.Class))))),
				)
			}),
			g.If(others != "", h.Tr(side(g.Text("other reasons")), cell("", ""), cell("n", others), cell("wide", ""))),
		),
	))
}

func lookSection(looks []look) g.Node {
	const title = "For a person to look at"
	if len(looks) == 0 {
		return section(title, quiet("Nothing: no charge is in doubt, rejected, unclaimed, or waits for its customer."))
	}
	linked := slices.ContainsFunc(looks, func(l look) bool {
		return slices.ContainsFunc(l.Rows, func(d due) bool { return d.LinkID != "" })
	})
	articles := g.Map(looks, func(l look) g.Node {
		return h.Article(h.Class("look"), h.ID("look-"+l.Class),
			h.H3(swatch(l.Class), g.Text(" "+l.Title+" "), h.Span(h.Class("badge"), g.Text(l.Dues))),
			h.P(h.Class("do"), g.Text(l.Do), g.If(l.Command != "", g.Group{g.Text(" "), h.Code(g.Text(l.Command))})),
			h.Table(
				h.THead(h.Tr(top("", "Customer"), top("n", "Amount"), top("", "Why"), top("", "At Stripe"))),
				h.TBody(g.Map(l.Rows, dueRow)),
			),
			g.If(l.More != "", h.P(h.Class("more"), g.Text("and "+l.More+" more: "), h.Code(g.Text(l.All)))),
		)
	})
	return section(title, articles, g.If(linked, quiet("The links are to live mode; in test mode put test/ after dashboard.stripe.com/.")))
}

func dueRow(d due) g.Node {
	return h.Tr(
		side(bdi("", d.Customer), g.If(d.Stripe != "", g.Group{h.Br(), bdi("quiet", d.Stripe)})),
		h.Td(h.Class("n"), bdi("", d.Amount)),
		h.Td(
			g.If(d.Code != "", h.Code(bdi("", d.Code))),
			g.If(d.Why != "", g.Group{g.Text(" "), bdi("quiet", d.Why)}),
		),
		h.Td(g.If(d.LinkID != "", h.A(h.Href(dashboard+d.Link+d.LinkID), h.Rel("noopener noreferrer"), g.Text(d.LinkID)))),
	)
}
