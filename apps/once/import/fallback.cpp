#include "import/fallback.hpp"

#include <utility>

#include <once/error.hpp>
#include <once/platform/system.hpp>

#include "output/report.hpp"
#include "output/text.hpp"

namespace once::cli::importing {

const char* const fails_open_with_fallback =
    "fallback= does not go with on-store-down run-unprotected: what the old table has done would run again whenever "
    "it, or the store, does not answer";
const char* const fallback_help =
    "fallback=FILE in the store's URL names another program's table that may still hold results: its row is read\n"
    "before a new claim. That program must no longer claim, because it does not read this store (docs/import.md).\n";

namespace {

std::string announcement(const std::string& file) {
  return "the old table of " + escaped(file) +
         " is read before a new claim (fallback=): the old program must no longer claim, because it does not "
         "read this store";
}

}  // namespace

Fallback::Fallback(const std::string& file, std::optional<bool> digests) : table_(read_old_table(file)) {
  if (!digests || *digests == !table_.mapping.hash.empty()) return;
  misuse("fallback=: " + escaped(file) + ": " +
         (*digests
              ? "the keys of this program are digests: say which (hash = \"sha256\"), and keep their texts, by which "
                "the old table's rows are found (once sqs --label all)"
              : "the keys of this program are texts, and hash is for keys that are digests: leave it out"));
}

std::shared_ptr<Store> Fallback::wrap(std::shared_ptr<Store> store, bool announces, std::string own_prefix) const {
  LookerOptions options{.table = table_};
  if (announces) {
    options.on_open = [name = table_.name](const Examined& examined) {
      say(announcement(name) + (examined.notice.empty() ? "" : "; " + examined.notice));
    };
  }
  return make_fallback_store({.store = std::move(store),
                              .old = make_old_table(std::move(options)),
                              .counts = counts_,
                              .own_prefix = std::move(own_prefix),
                              .clock = system_clock(),
                              .random = system_random()});
}

std::string Fallback::examine() const {
  try {
    const Examined examined = importing::examine(table_);
    return announcement(table_.name) + "; " + examined.found + (examined.notice.empty() ? "" : "; " + examined.notice);
  } catch (const Exception& error) {
    throw Exception(error.kind(),
                    "the old table of " + escaped(table_.name) + " (fallback=) cannot be used: " + error.what());
  }
}

FallbackAccess open_with_fallback(const StoreOptions& options, Missing missing, FallbackUse use) {
  FallbackAccess out;
  if (use.takes_server && names_server(options)) {
    out.access = open_server(options);
    return out;
  }
  StoreOptions without = options;
  const std::string file = take_fallback(without);
  if (!file.empty()) {
    if (use.fails_open) misuse(fails_open_with_fallback);
    out.fallback = std::make_shared<const Fallback>(file, use.digests);
  }
  out.access = open_access(without, missing);
  if (!out.fallback) return out;
  if (out.access.raw_scopes) misuse("fallback= does not go with a Powertools dialect, whose table has keys of its own");
  out.access.store = out.fallback->wrap(std::move(out.access.store), use.announces, std::move(use.own_prefix));
  return out;
}

}  // namespace once::cli::importing
