package stripesim

import (
	"math"
	"net/http"
	"slices"
	"sort"
)

const (
	defaultLimit = 10
	maxLimit     = 100
	// maxTotalCount is how far Stripe promises that total_count is accurate.
	maxTotalCount = 10_000
)

type listJSON struct {
	Object  string `json:"object"`
	URL     string `json:"url"`
	HasMore bool   `json:"has_more"`
	Data    []any  `json:"data"`
	// Of searches only.
	NextPage   *string `json:"next_page,omitempty"`
	TotalCount *int    `json:"total_count,omitempty"`
}

func (f *form) limit() int {
	n := f.integer("limit", defaultLimit)
	if n < 1 || n > maxLimit {
		f.refuse("parameter_invalid_integer", "limit", "Invalid limit: must be between 1 and %d.", maxLimit)
	}
	return int(n)
}

// created returns the inclusive bounds of the created filter.
func (f *form) created() (low, high int64) {
	low, high = math.MinInt64, math.MaxInt64
	if at := f.integer("created", math.MinInt64); at != math.MinInt64 {
		return at, at
	}
	if v := f.integer("created[gt]", math.MinInt64); v != math.MinInt64 {
		low = v + 1
	}
	low = max(low, f.integer("created[gte]", math.MinInt64))
	if v := f.integer("created[lt]", math.MaxInt64); v != math.MaxInt64 {
		high = v - 1
	}
	return low, min(high, f.integer("created[lte]", math.MaxInt64))
}

// list pages newest first, by cursor, and sees every write that was answered.
func list(kind string) endpoint {
	return func(s *Sim, r Request) (func() reply, *reply) {
		values := r.Params
		f := newForm(values,
			[]string{"customer", "created", "limit", "starting_after", "ending_before", "expand"},
			map[string][]string{"created": {"gt", "gte", "lt", "lte"}, "expand": nil})
		limit := f.limit()
		low, high := f.created()
		after, before := values.Get("starting_after"), values.Get("ending_before")
		if after != "" && before != "" {
			f.refuse("", "", "You may only specify one of these parameters: starting_after, ending_before.")
		}
		if f.bad != nil {
			return nil, f.bad
		}
		return func() reply {
			s.mu.Lock()
			defer s.mu.Unlock()
			book := s.book(kind)
			es := book.of(values.Get("customer"))
			first := sort.Search(len(es), func(i int) bool { return es[i].created >= low })
			end := sort.Search(len(es), func(i int) bool { return es[i].created > high })
			if id := after + before; id != "" {
				cursor := book.byID[id]
				if cursor == nil {
					return noSuch(kind, id)
				}
				i, found := slices.BinarySearchFunc(es, cursor, (*entry).compare)
				switch {
				case after != "":
					end = min(end, i)
				case found:
					first = max(first, i+1)
				default:
					first = max(first, i)
				}
			}
			end = max(first, end)
			page := es[max(first, end-limit):end]
			if before != "" { // the page next to the cursor, still newest first
				page = es[first:min(end, first+limit)]
			}
			out := listJSON{Object: "list", URL: r.Path, HasMore: len(page) < end-first, Data: make([]any, 0, len(page))}
			for _, e := range slices.Backward(page) {
				out.Data = append(out.Data, encode(e.cur))
			}
			return answer(http.StatusOK, out)
		}, nil
	}
}
