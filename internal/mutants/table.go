package main

// mistake is one that mutant.Is switches on.
type mistake struct {
	name string
	// The tests of package pkg that are there for it, as a regular expression.
	pkg, test string
}

// all are the mistakes. Torture cannot notice all of them: some layers hold
// where another one fails, which is what they are for.
func all() []mistake {
	return []mistake{
		// A statement that should need the period's lock runs without it.
		{"skip-fence", "charges", "TestClaim_refusesWithoutTheLock"},
		// Something that is not a business fact enters the key.
		{"random-key", "charges", "TestKeySQL_isKey"},
		// A claimed slot is taken for one that somebody else is charging.
		{"skip-recovery", "job", "TestRun_refusedMidwayStopsAndDeclinesNobody"},
		// A resend reads what is owed now, not what was frozen.
		{"resend-from-customers", "charges", "TestInDoubt_isWhatWasClaimedAndNothingElse"},
		// Each run reads the customers again, not only the one that opens.
		{"customers-reread", "job", "TestRun_readsTheCustomersOnce"},
		// Being told to stop counts as success, and the Job does not go on.
		{"exit-0-on-sigterm", "", ""},
		// A page of charges that cannot be read is taken for the last one.
		{"list-error-is-empty", "charges", "TestFind_aListThatFailsIsNotNotFound"},
		// A slot whose key Stripe has forgotten is sent without a look.
		{"no-lookup", "charges", "TestSend_anOldSlotIsLookedForFirst"},
		// The key is believed to be known for longer than Stripe keeps it.
		{"window-too-long", "charges", "TestResendable"},
		// An old slot is sent anew, and nobody writes down that its key is young.
		{"window-not-refreshed", "charges", "TestRefreshWindow"},
		// net/http sends a POST again by itself, without asking.
		{"http-replay", "charges", "TestCharge_aReusedConnectionThatDiesIsNotReplayed"},
		// A process that was asleep does not ask whether it still leads.
		{"may-charge-ignored", "charges", "TestSend_mayNotCharge"},
		// A late answer undoes what was recorded.
		{"settle-overwrites", "charges", "TestSettle_lesserNeverReplacesGreater"},
		// An answer that never came is taken for a decline.
		{"in-doubt-is-declined", "job", "TestRun_inAnOutageGivesUpAfterAFewSlots"},
		// A ledger from an old backup is taken for the newest.
		{"trust-any-ledger", "job", "TestRun_onAnOlderLedgerChargesNobodyAgain"},
		// The cursor stays where it was, or says that all have been claimed.
		{"cursor-stays", "charges", "TestClaim_pagesByTheLastID"},
		{"cursor-too-far", "charges", "TestClaim_pagesByTheLastID"},
		// A shard says for its sisters, too, that their dues have slots.
		{"shard-moves-the-cursor", "charges", "TestClaim_byShards"},
		// A shard takes up what is its sisters'.
		{"shard-has-all", "charges", "TestOpenSlots_belongToOneShard"},
	}
}
