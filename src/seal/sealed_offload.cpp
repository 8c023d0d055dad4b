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

constexpr seals::Context context{.kind = "object", .name = {}, .bound = {}};

OffloadAnswer fail(ErrorKind kind, std::string message) {
  return {.text = {}, .error = Error{kind, std::move(message)}};
}

// What was put before sealing began is given as it is: a reader compares it with the digest in the record.
OffloadAnswer open(const SealKeys& keys, const std::string& location, std::string text) try {
  if (!seals::looks_sealed(text)) return {.text = std::move(text), .error = {}};
  std::string_view sealed = text;
  const std::string id(*seals::take_key_id(sealed));
  const SealKey* const key = seals::find(keys, id);
  if (key == nullptr) {
    return fail(ErrorKind::misuse, "the result at " + location + " is sealed with the key '" + id +
                                       "', which this program does not have: give it the key, as seal=FILE in the "
                                       "URL or by once::seal()");
  }
  if (auto plain = seals::open(*key, context, sealed)) return {.text = *std::move(plain), .error = {}};
  return fail(ErrorKind::corrupt, "the result at " + location + " does not open with the seal key '" + id +
                                      "': the key has other bytes than when it was sealed, or the result was changed");
} catch (const Exception& error) {
  return fail(error.kind(), error.what());
}

class SealedOffload final : public Offload {
 public:
  SealedOffload(std::shared_ptr<Offload> offload, SealKeys keys, SealWrites writes)
      : keys_(std::make_shared<const SealKeys>(std::move(keys))), writes_(writes), offload_(std::move(offload)) {}

  void put(std::string hint, std::string bytes, Callback<void(OffloadAnswer)> done) override {
    if (writes_ == SealWrites::clear) return offload_->put(std::move(hint), std::move(bytes), std::move(done));
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
                    done(answer.error ? std::move(answer) : open(*keys, where, std::move(answer.text)));
                  });
  }

  void remove(std::string location, Callback<void(OffloadAnswer)> done) override {
    offload_->remove(std::move(location), std::move(done));
  }

  [[nodiscard]] bool seals() const noexcept override { return writes_ == SealWrites::sealed; }

 private:
  const std::shared_ptr<const SealKeys> keys_;
  const SealWrites writes_;
  const std::shared_ptr<Offload> offload_;
};

}  // namespace

std::shared_ptr<Offload> seal(std::shared_ptr<Offload> offload, SealKeys keys, SealWrites writes) {
  seals::check(keys);
  return std::make_shared<SealedOffload>(std::move(offload), std::move(keys), writes);
}

}  // namespace once
