// A store whose records may move to another one (once/move.hpp) while programs have both URLs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <once/store.hpp>

namespace once::stores {

// Works on `from` until its records have moved, and from then on on the store that `open_to` makes, for ever. open_to()
// is called by a thread of the store once `from` is closed. It returns a store, or throws, and is called again then.
//
// The other store is used only if `from` is closed for good and the other one takes claims under the same move's name:
// never because `from` does not answer, and never before the move is over. So at no moment do claims begin in both.
// Until then callers get what `from` says; to a refused write the reason is added.
//
// It looks at the marks when it is made (a `from` that does not answer then is no error), every `look_every`, and 0.1 s
// after a write that was refused as misuse. Between the end of the move and that look, reads are answered from `from`,
// whose records no longer change.
//
// A store that is in use changes over only if both tell times that are less than a second apart: operations that are
// under way have leases by the first one's clock. From then on that difference counts as an error of time(). One that
// is made after the move has no such operations.
//
// Capabilities: those of the store that it works on, but at most 16 MiB for a record; default_skew is at least two
// seconds, as the clock may change. replace_with() is declined, and hands_out and has_finish_function are false, as the
// user's own rows do not move.
//
// Throws Exception: misuse if `from` has no gate (StoreGate); unavailable if no thread can be started.
std::unique_ptr<Store> make_moving_store(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to,
                                         Millis look_every = Millis{1'000});

// If `store` is or wraps such a store: `told` is called with the second store's name when that comes into use, once, by
// a thread of the store. It must not throw. Not at all if that was so before. Replaces an earlier one.
void when_moved(Store& store, std::function<void(const std::string& name)> told);

}  // namespace once::stores
