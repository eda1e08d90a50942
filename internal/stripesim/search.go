package stripesim

import (
	"net/http"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"
)

// Ways in which Search is not to be had, for [Sim.RefuseSearch].
const (
	// SearchNoRegion is what accounts in India are told.
	SearchNoRegion = "region"
	// SearchNoPermission is what a restricted key without the right is told.
	SearchNoPermission = "permission"
	// SearchNoRoute is what a version of the API without Search answers.
	SearchNoRoute = "route"
	// SearchNoCount is a version of the API without total_count, which it is
	// since 2025-05-28; all else is answered.
	SearchNoCount = "total_count"
)

// RefuseSearch makes Search unavailable in one of the ways above; empty ends
// that. Lists go on.
func (s *Sim) RefuseSearch(how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.searchRefused = how
}

// SetSearchLag replaces Options.SearchLag.
func (s *Sim) SetSearchLag(d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opts.SearchLag = d
}

// refusedSearch is Stripe's answer where Search is not to be had; counting is
// true if the request asks for total_count.
func refusedSearch(how string, counting bool, r Request) *reply {
	var out reply
	switch {
	case how == SearchNoRegion:
		return invalid("", "", "The search feature is temporarily unavailable in your region.")
	case how == SearchNoPermission:
		out = forbidden(r)
	case how == SearchNoRoute:
		out = unrecognized(r)
	case how == SearchNoCount && counting:
		return invalid("", "expand", "This property cannot be included (total_count)")
	default:
		return nil
	}
	return &out
}

// search finds what is older than the lag, newest first, in pages.
func search(kind string) endpoint {
	return func(s *Sim, r Request) (func() reply, *reply) {
		f := newForm(r.Params, []string{"query", "limit", "page", "expand"}, collections())
		clauses, limit, page := f.query(kind), f.limit(), r.Params.Get("page")
		if f.bad != nil {
			return nil, f.bad
		}
		total := false
		for name, vs := range r.Params {
			total = total || strings.HasPrefix(name, "expand[") && slices.Contains(vs, "total_count")
		}
		return func() reply {
			s.mu.Lock()
			defer s.mu.Unlock()
			if bad := refusedSearch(s.searchRefused, total, r); bad != nil {
				return *bad
			}
			book := s.book(kind)
			es := book.all
			newest := s.now().Add(-s.opts.SearchLag).Unix()
			end := sort.Search(len(es), func(i int) bool { return es[i].created > newest })
			var cursor *entry
			if page != "" {
				if cursor = book.byID[page]; cursor == nil {
					return *invalid("", "page", "Invalid page.")
				}
			}
			out := listJSON{Object: "search_result", URL: r.Path, Data: []any{}}
			count, last := 0, ""
			for _, e := range slices.Backward(es[:end]) {
				past := cursor == nil || e.compare(cursor) < 0
				if !past && !total || slices.ContainsFunc(clauses, func(c clause) bool { return !c.matches(e.cur) }) {
					continue
				}
				count++
				switch {
				case !past:
				case len(out.Data) < limit:
					out.Data = append(out.Data, encode(e.cur))
					last = e.cur.ID
				default:
					out.HasMore = true
				}
				if out.HasMore && (!total || count >= maxTotalCount) {
					break
				}
			}
			if out.HasMore {
				out.NextPage = &last
			}
			if total {
				out.TotalCount = &count
			}
			return answer(http.StatusOK, out)
		}, nil
	}
}

// clause is one term of Search's query language: field:'value' or
// metadata['name']:'value', negated by a minus before it.
type clause struct {
	field, value string
	not          bool
}

var (
	queryTerm = regexp.MustCompile(`^\s*(-?)(?:([a-z_]+)|metadata\[(?:'([^']+)'|"([^"]+)")\])\s*:\s*(?:'([^']*)'|"([^"]*)")\s*$`)
	queryAnd  = regexp.MustCompile(`(?i)\s+and\s+`)
)

// query reads terms that are joined by AND, each an exact match: what Duesday
// asks. Stripe has more (OR, ~, <, >); here that is refused as a query that
// cannot be parsed, rather than answered wrongly.
func (f *form) query(kind string) []clause {
	text := f.values.Get("query")
	if text == "" {
		f.refuse("parameter_missing", "query", "Missing required param: query.")
		return nil
	}
	var out []clause
	for _, part := range queryAnd.Split(text, -1) {
		m := queryTerm.FindStringSubmatch(part)
		if m == nil {
			f.refuse("", "query", "We were unable to parse your search query.")
			return nil
		}
		c := clause{field: m[2], value: m[5] + m[6], not: m[1] != ""}
		switch c.field {
		case "customer", "status", "currency":
		case "":
			c.field = "metadata/" + m[3] + m[4]
		default:
			f.refuse("", "query", "Field `%s` is an unsupported search field for resource `%ss`.", c.field, kind)
			return nil
		}
		out = append(out, c)
	}
	return out
}

func (c clause) matches(ch *Charge) bool {
	var value string
	switch c.field {
	case "customer":
		value = ch.Customer
	case "status":
		value = ch.Status
	case "currency":
		value = ch.Currency
	default:
		value = ch.Metadata[strings.TrimPrefix(c.field, "metadata/")]
	}
	return (value == c.value) != c.not
}
