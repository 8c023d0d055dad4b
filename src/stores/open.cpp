#include <once/stores/open.hpp>

#include <unistd.h>

#include <cerrno>
#include <functional>
#include <utility>

#include <once/offload/directory.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>
#include <once/stores/moving.hpp>

#include "stores/url.hpp"
#include "text/percent.hpp"
#if ONCE_AWS
#include <once/seal_kms.hpp>

#include "stores/open_aws.hpp"
#include "stores/open_server.hpp"
#endif
#if ONCE_POSTGRESQL
#include "stores/open_postgresql.hpp"
#endif
#if ONCE_SQLITE
#include "stores/open_sqlite.hpp"
#endif

namespace once {

namespace {

using stores::Url;

std::unique_ptr<Store> open_memory(Url& url) {
  url.refuse_rest("");
  if (!url.path().empty()) url.refuse("memory: has no path");
  return stores::make_memory_store();
}

#if ONCE_SQLITE
std::unique_ptr<Store> open_sqlite(Url& url) { return stores::make_sqlite_store(stores::sqlite_options(url)); }
#endif

#if ONCE_POSTGRESQL
std::unique_ptr<Store> open_postgresql(Url& url) { return stores::make_postgresql_store(stores::take_postgresql(url)); }
#endif

std::shared_ptr<Offload> open_directory(Url& url) {
  url.refuse_rest("");
  if (url.path().empty()) url.refuse("the path of the directory is missing, as in file:/var/lib/once/results");
  if (url.path().starts_with("//")) url.refuse("write one slash: file:/path/to/directory");
  return make_directory_offload(url.path());
}

template <class Opened>
struct Scheme {
  std::string_view name;
  Opened (*open)(Url& url);  // Takes the parameters it knows and refuses the rest.
};

// A new store or offload is a line here, and its component in CMakeLists.txt.
constexpr Scheme<std::unique_ptr<Store>> stores_by_scheme[] = {
    {"memory", open_memory},
#if ONCE_SQLITE
    {"sqlite", open_sqlite},
#endif
#if ONCE_POSTGRESQL
    {"postgresql", open_postgresql},
    {"postgres", open_postgresql},
#endif
#if ONCE_AWS
    {"dynamodb", stores::open_dynamodb},
#endif
};
constexpr Scheme<std::shared_ptr<Offload>> offloads_by_scheme[] = {
    {"file", open_directory},
#if ONCE_AWS
    {"s3", stores::open_s3},
#endif
};

std::string names(const auto& schemes) {
  std::string out;
  for (const auto& scheme : schemes) {
    if (!out.empty()) out += ", ";
    out += std::string(scheme.name) + ":";
  }
  return out;
}

// `others`: what is opened elsewhere.
auto open_with(const auto& schemes, Url& url, std::string_view others = {}) {
  for (const auto& scheme : schemes) {
    if (scheme.name == url.scheme()) return scheme.open(url);
  }
  url.refuse("unknown scheme '" + url.scheme() + "'; this build knows " + names(schemes).append(others));
}

struct Sealing {
  SealKeys keys;  // Empty: the URL names none.
  SealWrites writes = SealWrites::sealed;
  SealReads reads = SealReads::both;  // Of a store.
};

enum class Of : std::uint8_t { store, offload };

Sealing take_sealing(Url& url, Of of) {
  const auto file = url.take_text("seal");
  const auto command = url.take_text("seal_command");
  if (file && command) url.refuse("seal= and seal_command= both name the keys: give one of them");
  SealKeyUnwrapper unwrap;
#if ONCE_AWS
  unwrap = kms_unwrapper();
#endif
  Sealing sealing;
  if (file) sealing.keys = read_seal_keys(*file, unwrap);
  if (command) sealing.keys = seal_keys_from_command(*command, unwrap);
  // These stores take it themselves: they guard what is sealed from programs without keys.
  const bool guards = url.scheme() == "sqlite" || url.scheme() == "postgresql" || url.scheme() == "postgres";
  const auto clear = guards ? url.flag("write_clear") : url.take_flag("write_clear");
  if (clear && !guards && sealing.keys.empty()) {
    url.refuse("write_clear= goes with seal= or seal_command=: without keys all is written in the clear here");
  }
  if (clear.value_or(false)) sealing.writes = SealWrites::clear;
  // An object from before sealing is believed for its digest, which the record has.
  if (const auto reads = of == Of::store ? url.take_flag("read_clear") : std::nullopt) {
    if (sealing.keys.empty()) url.refuse("read_clear= goes with seal= or seal_command=");
    if (!*reads) sealing.reads = SealReads::sealed;
  }
  return sealing;
}

// Opens the store that moves_to= names, which stands in the first one's URL. A malformed URL is refused now.
std::function<std::unique_ptr<Store>()> opener(const Url& first, std::string_view text) {
  const std::size_t at = first.text().find("moves_to=");
  const std::string_view rest = std::string_view(first.text()).substr(at);
  if (rest.find('&') != std::string_view::npos && rest.substr(0, rest.find('&')).find('?') != std::string_view::npos) {
    first.refuse(
        "after moves_to= with a '?' a parameter could belong to either URL: put moves_to= last, and write '&' "
        "in it as %26; or write its '?' as %3F");
  }
  const Url given(text, "URL of moves_to=");
  for (const char* const of_both : {"fallback", "offload", "seal", "seal_command", "read_clear", "write_clear"}) {
    if (given.has(of_both)) {
      given.refuse(std::string(of_both) + "= stands in the URL of the first store only, and counts for both");
    }
  }
  if (given.has("moves_to")) given.refuse("moves_to= stands in the URL of the first store only");
  Url next = given;
  if (first.flag("write_clear").value_or(false)) next.add("write_clear", "1");
  if (next.scheme() == "sqlite") {
    if (!next.has("create")) next.add("create", "0");  // A move makes it.
    if (first.flag("read_only").value_or(false) && !next.has("read_only")) next.add("read_only", "1");
  }
  if (next.scheme() != "sqlite" && next.scheme() != "postgresql" && next.scheme() != "postgres") {
    next.refuse("records can move to a store in SQLite or PostgreSQL, and to no other");
  }
  const auto open_next = [next] {
    Url url = next;
    return open_with(stores_by_scheme, url);
  };
#if ONCE_SQLITE
  if (next.scheme() == "sqlite") {  // To open it would ask for the file.
    Url trial = next;
    stores::sqlite_options(trial);
    return open_next;
  }
#endif
  open_next();  // PostgreSQL is connected to only when it is used.
  return open_next;
}

std::unique_ptr<Store> open_sealed_store(Url& url, Sealing sealing) {
  if (url.has("fallback")) {
    url.refuse(
        "fallback= is for once run, once proxy and once sqs: this program would claim without reading the old table. "
        "Bring its rows by once import, and leave fallback= out");
  }
  std::unique_ptr<Store> store;
  if (const auto next = url.take_text("moves_to")) {
    auto open_next = opener(url, *next);
    // A new first file, where the old one has been deleted after its move, would be open and know nothing.
    if (url.scheme() == "sqlite" && !url.has("create")) url.add("create", "0");
    try {
      store = stores::make_moving_store(open_with(stores_by_scheme, url), std::move(open_next));
    } catch (const Exception& error) {
      const bool is_missing = error.kind() == ErrorKind::unavailable && url.scheme() == "sqlite" &&
                              ::access(url.path().c_str(), F_OK) != 0 && errno == ENOENT;
      if (!is_missing) throw;
      throw Exception(ErrorKind::unavailable, "sqlite store " + url.path() +
                                                  ": the file does not exist, and with moves_to= it is not created. If "
                                                  "the move is over, name the second store alone; otherwise check the "
                                                  "path");
    }
  } else {
    store = open_with(stores_by_scheme, url, ONCE_AWS ? ", once:" : "");
  }
  if (sealing.keys.empty()) return store;
  return seal(std::move(store), std::move(sealing.keys), sealing.writes, sealing.reads);
}

std::shared_ptr<Offload> open_sealed_offload(Url& url, Sealing sealing) {
  std::shared_ptr<Offload> offload = open_with(offloads_by_scheme, url);
  if (sealing.keys.empty()) return offload;
  return seal(std::move(offload), std::move(sealing.keys), sealing.writes);
}

}  // namespace

std::unique_ptr<Store> open_store(std::string_view text) {
#if ONCE_AWS
  if (stores::is_server_url(text)) return stores::open_server(text);
#endif
  Url url(text);
  if (url.take_text("offload")) url.refuse("offload= names a second place: open_backend() opens both");
  Sealing sealing = take_sealing(url, Of::store);
  return open_sealed_store(url, std::move(sealing));
}

std::shared_ptr<Offload> open_offload(std::string_view text) {
  Url url(text, "offload URL");
  Sealing sealing = take_sealing(url, Of::offload);
  return open_sealed_offload(url, std::move(sealing));
}

Backend open_backend(std::string_view text) {
  Backend backend;
#if ONCE_AWS
  if (stores::is_server_url(text)) {
    backend.store = stores::open_server(text);
    return backend;
  }
#endif
  Url url(text);
  const auto offload = url.take_text("offload");
  const Sealing sealing = take_sealing(url, Of::store);
  backend.seal_keys = sealing.keys;
  backend.seal_writes = sealing.writes;
  if (offload) {
    Url place(*offload, "offload URL");
    Sealing its_own = take_sealing(place, Of::offload);
    backend.offload = open_sealed_offload(place, its_own.keys.empty() ? sealing : its_own);
  }
  backend.store = open_sealed_store(url, sealing);
  return backend;
}

std::string escape_url(std::string_view text) {
  return text::percent_encoded(
      text, [](char c) { return c > 0x20 && c < 0x7F && std::string_view("%?#&").find(c) == std::string_view::npos; });
}

}  // namespace once
