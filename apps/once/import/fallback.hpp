// fallback=FILE in a store's URL: the store is opened with another program's table beside it, which is read before a
// new claim.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <once/store.hpp>

#include "import/fallback_store.hpp"
#include "import/old_table.hpp"
#include "settings/access.hpp"

namespace once::cli::importing {

extern const char* const fails_open_with_fallback;  // Why such a program refuses fallback=.
extern const char* const fallback_help;             // For the end of a command's help.

// The table, and what is counted.
class Fallback {
 public:
  // Throws as read_old_table() does. `digests`: the program's keys are digests, as those of an expression. Empty: the
  // caller claims nothing, and asks for another program.
  Fallback(const std::string& file, std::optional<bool> digests);

  // `announces`: prints what examine() returns, but for the rows, when the table is first opened. `own_prefix`: as in
  // FallbackStoreOptions.
  [[nodiscard]] std::shared_ptr<Store> wrap(std::shared_ptr<Store> store, bool announces, std::string own_prefix) const;

  // Opens the table, and says what it saw, for the start of a program. Throws Exception as importing::examine() does.
  [[nodiscard]] std::string examine() const;

  [[nodiscard]] std::string metrics() const { return counts_->text(); }  // Prometheus' text format.

 private:
  const OldTableOptions table_;
  const std::shared_ptr<LookCounts> counts_ = std::make_shared<LookCounts>();
};

struct FallbackUse {
  bool fails_open = false;  // The command would run without a claim when a store does not answer: Exception(misuse).
  bool digests = false;     // The command's keys are digests.
  bool announces = false;   // As in Fallback::wrap().
  std::string own_prefix = {};  // The same.
  bool takes_server = false;    // The command also claims at a server: once:// in the URL.
};

struct FallbackAccess {
  StoreAccess access = {};                        // Its URL is without fallback=.
  std::shared_ptr<const Fallback> fallback = {};  // Empty: the URL has no fallback=.

  [[nodiscard]] std::string metrics() const { return fallback ? fallback->metrics() : std::string(); }
};

// open_access() for commands that claim. If the URL has fallback=, the store looks. Throws as Fallback and
// open_access() do.
FallbackAccess open_with_fallback(const StoreOptions& options, Missing missing, FallbackUse use);

}  // namespace once::cli::importing
