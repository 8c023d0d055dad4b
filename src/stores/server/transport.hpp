// Requests to a server: its address, who the client is, and a server that is started on demand.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <once/callback.hpp>
#include <once/error.hpp>
#include <once/stores/server.hpp>
#include <once/time.hpp>

#include "aws/http_client.hpp"
#include "stores/server/messages.hpp"

namespace once::stores {

struct Exchanged {
  Response response = {};
  // unavailable: nothing was sent. in_doubt: it may have arrived. misuse: trying again is of no use.
  std::optional<Error> error = {};
  bool is_final = false;  // error: trying again soon is of no use.
};

// Thread-safe.
class Transport : public std::enable_shared_from_this<Transport> {
 public:
  explicit Transport(ServerOptions options);  // As checked() returns them.
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;
  ~Transport() = default;

  // Sends once. But a request that a server on demand did not get is sent to the next one that is started, and one
  // whose token was refused with that of its file, if that is another one by now.
  void send(Sending sending, Millis timeout, Callback<void(Exchanged&&)> done);

  [[nodiscard]] const ServerOptions& options() const noexcept { return options_; }

 private:
  struct Call {
    Sending sending;
    Uptime until;
    Callback<void(Exchanged&&)> done;
    std::string token = {};   // That was shown.
    std::string socket = {};  // That it was sent to, on demand.
    bool may_repeat = true;
  };
  using CallPtr = std::shared_ptr<Call>;

  void dispatch(const CallPtr& call);
  void start(const CallPtr& call);  // The server on demand, then sends.
  void started(const std::string& socket, std::optional<Error> error);
  void transmit(const CallPtr& call);
  void answered(const CallPtr& call, aws::HttpAnswer&& answer);
  // The file's. Throws Exception(misuse).
  std::string token(const std::string& refused);
  [[nodiscard]] std::string certificate_advice() const;

  const ServerOptions options_;
  const std::shared_ptr<aws::HttpClient> http_;
  std::mutex mutex_;                             // Guards the following.
  std::string token_;                            // Empty: not read yet.
  std::string socket_;                           // On demand: where a server was. Empty: none is known.
  std::optional<std::vector<CallPtr>> waiting_;  // For a server that is being started.
};

}  // namespace once::stores
