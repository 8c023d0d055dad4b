package once

import "testing"

func TestWhoseServerIsTrusted(t *testing.T) {
	const own, other, root, owner = 1000, 1001, 0, 2000
	for _, each := range []struct {
		peer       uint32
		isOnDemand bool
		mode       uint32
		isTrusted  bool
	}{
		{own, true, 0o700, true}, {other, true, 0o700, false}, {root, true, 0o700, false}, {other, false, 0o750, true}, {other, false, 0o775, true},
		{other, false, 0o1777, false}, {own, false, 0o1777, true}, {root, false, 0o1777, true}, {owner, false, 0o777, true},
	} {
		if why := distrust(each.peer, own, each.isOnDemand, owner, each.mode); (why == "") != each.isTrusted {
			t.Errorf("%+v: %q", each, why)
		}
	}
}
