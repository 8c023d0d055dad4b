#include <once/stores/open.hpp>

#include <utility>

#include <once/offload/directory.hpp>
#include <once/seal.hpp>
#include <once/stores/memory.hpp>

#include "stores/url.hpp"
#include "text/percent.hpp"
#if ONCE_AWS
#include <once/seal_kms.hpp>

#include "stores/open_aws.hpp"
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

auto open_with(const auto& schemes, Url& url) {
  for (const auto& scheme : schemes) {
    if (scheme.name == url.scheme()) return scheme.open(url);
  }
  url.refuse("unknown scheme '" + url.scheme() + "'; this build knows " + names(schemes));
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

std::unique_ptr<Store> sealed(std::unique_ptr<Store> store, Sealing sealing) {
  return seal(std::move(store), std::move(sealing.keys), sealing.writes, sealing.reads);
}

std::shared_ptr<Offload> sealed(std::shared_ptr<Offload> offload, Sealing sealing) {
  return seal(std::move(offload), std::move(sealing.keys), sealing.writes);
}

auto open_sealed(const auto& schemes, Url& url, Sealing sealing) {
  auto opened = open_with(schemes, url);
  if (sealing.keys.empty()) return opened;
  return sealed(std::move(opened), std::move(sealing));
}

}  // namespace

std::unique_ptr<Store> open_store(std::string_view text) {
  Url url(text);
  if (url.take_text("offload")) url.refuse("offload= names a second place: open_backend() opens both");
  Sealing sealing = take_sealing(url, Of::store);
  return open_sealed(stores_by_scheme, url, std::move(sealing));
}

std::shared_ptr<Offload> open_offload(std::string_view text) {
  Url url(text, "offload URL");
  Sealing sealing = take_sealing(url, Of::offload);
  return open_sealed(offloads_by_scheme, url, std::move(sealing));
}

Backend open_backend(std::string_view text) {
  Url url(text);
  const auto offload = url.take_text("offload");
  Backend backend;
  const Sealing sealing = take_sealing(url, Of::store);
  backend.seal_keys = sealing.keys;
  backend.seal_writes = sealing.writes;
  if (offload) {
    Url place(*offload, "offload URL");
    Sealing its_own = take_sealing(place, Of::offload);
    backend.offload = open_sealed(offloads_by_scheme, place, its_own.keys.empty() ? sealing : its_own);
  }
  backend.store = open_sealed(stores_by_scheme, url, sealing);
  return backend;
}

std::string escape_url(std::string_view text) {
  return text::percent_encoded(
      text, [](char c) { return c > 0x20 && c < 0x7F && std::string_view("%?#&").find(c) == std::string_view::npos; });
}

}  // namespace once
