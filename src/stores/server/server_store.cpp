#include <once/stores/server.hpp>

#include <utility>

#include <once/platform/system.hpp>

#include "core/claims_server.hpp"
#include "stores/server/address.hpp"
#include "stores/server/claim.hpp"
#include "stores/server/messages.hpp"
#include "stores/server/transport.hpp"

namespace once::stores {

namespace {

class ServerStore final : public Store, public ClaimsServer {
 public:
  explicit ServerStore(ServerOptions&& options) {
    auto parts = std::make_shared<ServerParts>();
    parts->name = name_of(options);
    parts->transport = std::make_shared<Transport>(std::move(options));
    parts->clock = system_clock();
    parts->random = system_random();
    parts->timers = make_system_timers(parts->clock);
    parts_ = std::move(parts);
  }

  void insert(RecordPtr /*record*/, Done done) override { done(refused()); }
  void replace(RecordPtr /*record*/, Seen /*seen*/, Done done) override { done(refused()); }
  void remove(std::string /*key*/, Seen /*seen*/, Done done) override { done(refused()); }
  void get(std::string key, Done done) override { parts_->look(std::move(key), std::move(done)); }
  void list(ListQuery /*query*/, Callback<void(ListPage)> done) override {
    ListPage page;
    page.error = refused().error;
    done(std::move(page));
  }
  void sweep(Time /*now*/, std::size_t /*limit*/, Callback<void(SweepAnswer)> done) override {
    SweepAnswer answer;
    answer.error = refused().error;
    done(std::move(answer));
  }

  [[nodiscard]] Capabilities capabilities() const noexcept override {
    Capabilities all;
    all.max_record_bytes = max_result_bytes;
    all.durable = true;
    all.shared = true;
    all.expires_itself = true;  // The server sweeps.
    return all;
  }
  [[nodiscard]] std::string name() const override { return parts_->name; }
  [[nodiscard]] ClaimsServer* claims_server() noexcept override { return this; }

  void begin(const Attempt& attempt, const EffectivePolicy& policy, Millis wait,
             Callback<void(Begun&&)> done) override {
    begin_at_server(parts_, attempt, policy, wait, std::move(done));
  }

 private:
  [[nodiscard]] Answer refused() const {
    return Answer::fail(ErrorKind::misuse, parts_->name +
                                               " is a server, which writes its records itself: use an engine, or open "
                                               "the server's own store");
  }

  std::shared_ptr<const ServerParts> parts_;
};

}  // namespace

std::unique_ptr<Store> make_server_store(ServerOptions options) {
  return std::make_unique<ServerStore>(checked(std::move(options)));
}

}  // namespace once::stores
