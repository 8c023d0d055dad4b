// An offload that seals what it puts. The record holds the digest of what it expects, so an object cannot stand for
// another one.
#include <memory>
#include <string>
#include <utility>

#include <once/error.hpp>
#include <once/seal.hpp>

#include "seal/sealing.hpp"

namespace once {

namespace {

constexpr seals::Context context{.kind = "object", .name = {}};

OffloadAnswer fail(ErrorKind kind, std::string message) {
  return {.text = {}, .error = Error{kind, std::move(message)}};
}

OffloadAnswer open(const SealKeys& keys, const std::string& location, std::string_view sealed) try {
  const auto id = seals::take_key_id(sealed);
  const SealKey* const key = id ? seals::find(keys, *id) : nullptr;
  auto plain = key == nullptr ? std::nullopt : seals::open(*key, context, sealed);
  if (plain) return {.text = std::move(*plain), .error = {}};
  return fail(ErrorKind::corrupt, "the result at " + location +
                                      " does not open: it is not sealed, its seal key is missing here, or it was "
                                      "changed");
} catch (const Exception& error) {
  return fail(error.kind(), error.what());
}

class SealedOffload final : public Offload {
 public:
  SealedOffload(std::shared_ptr<Offload> offload, SealKeys keys)
      : keys_(std::make_shared<const SealKeys>(std::move(keys))), offload_(std::move(offload)) {}

  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    std::string sealed;
    try {
      sealed = seals::seal(keys_->front(), context, hint, bytes);
    } catch (const Exception& error) {
      return done(fail(error.kind(), error.what()));
    }
    offload_->put(std::move(hint), std::move(sealed), std::move(done));
  }

  void get(std::string location, Callback<void(OffloadAnswer)> done) override {
    std::string where = location;
    offload_->get(std::move(location),
                  [keys = keys_, where = std::move(where), done = std::move(done)](OffloadAnswer answer) mutable {
                    done(answer.error ? std::move(answer) : open(*keys, where, answer.text));
                  });
  }

  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    offload_->remove(std::move(location), std::move(done));
  }

  [[nodiscard]] bool seals() const noexcept override { return true; }

 private:
  const std::shared_ptr<const SealKeys> keys_;
  const std::shared_ptr<Offload> offload_;
};

}  // namespace

std::shared_ptr<Offload> seal(std::shared_ptr<Offload> offload, SealKeys keys) {
  seals::check(keys);
  return std::make_shared<SealedOffload>(std::move(offload), std::move(keys));
}

}  // namespace once
