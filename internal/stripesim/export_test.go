package stripesim

// DieWithParent lets the tests' other process end as the simulator's does.
var DieWithParent = dieWithParent
