// Detects a snapshot: what was found or opened before it may be shared with another copy of this process, or out of
// date.
#pragma once

namespace once {

// Changes at each before_snapshot() and after_restore(). An object that keeps the number can tell what is from before.
unsigned snapshots() noexcept;

}  // namespace once
