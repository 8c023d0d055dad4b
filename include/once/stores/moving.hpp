// A store whose records may move to another one (once/move.hpp) while programs have both URLs.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <once/store.hpp>

namespace once::stores {

// Works on `from` until its records have moved, and from then on on the store that `open_to` makes, for ever. open_to()
// is called by a thread of the store once `from` is closed. It may throw Exception, and is called again then.
//
// The other store is used only if `from` is closed for good and the other one takes claims under the same move's name:
// never because `from` does not answer, and never before the move is over. So at no moment do claims begin in both.
// What `from` refused as misuse is tried again there, as nothing was written. While the move runs, and as long as the
// other store cannot be used, callers get what `from` said, with the reason.
//
// It looks at the marks when it is made (a `from` that does not answer then is no error), after a write that was
// refused as misuse, and before a list, but not more often than every `look_every`. Until then, reads are answered from
// `from`, whose records no longer change.
//
// Capabilities: those of the store that it works on. But hands_out and has_finish_function are false, as the user's own
// rows do not move; and default_skew is at least two seconds, as the clock may change.
//
// Throws Exception(misuse) if `from` has no gate (StoreGate).
std::unique_ptr<Store> make_moving_store(std::unique_ptr<Store> from, std::function<std::unique_ptr<Store>()> open_to,
                                         Millis look_every = Millis{100});

// If `store` is or wraps such a store: `told` is called with the second store's name when that comes into use, once, by
// a thread of the store. It must not throw. Not at all if that was so before. Replaces an earlier one.
void when_moved(Store& store, std::function<void(const std::string& name)> told);

}  // namespace once::stores
