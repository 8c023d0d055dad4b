// The store of a running `once serve`, by its claims API (docs/serve.md): for programs that share one server, on this
// host or another one.
//
//   once::Engine engine({.store = once::open_store("once:///run/once.sock")});
//
// An engine that is given this store claims at the server, which renews, writes and decides. All else is as with other
// stores: idempotent(), run(), begin(), steps, waiting. A claim outlives a restart of the server.
//
// What only the program can do that writes the records is refused as Exception(misuse), when the engine is made or
// called: EngineOptions::offload, Policy::keep_input, Policy::fixed_lease, Engine::attach(), writes that commit with a
// result, and all operations of Store but get(), which returns what the server says to anybody: no owner, token or
// times.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <once/store.hpp>
#include <once/time.hpp>

namespace once::stores {

// Where a server is, and how to speak to it: `host`, `socket` alone, or `on_demand`.
struct ServerOptions {
  std::string host = {};   // A name or an address, without brackets.
  std::uint16_t port = 0;  // With `host`: from 1.

  // The path of a Unix socket. A server of another user is believed only where not every user could have made its
  // socket. With `on_demand`: where to look before the program is run. Empty: nowhere.
  std::string socket = {};

  // A store's URL. `program` serves it: it is started when it does not answer, and ends some time after its last use
  // (docs/serve.md). It must be this user's.
  std::string on_demand = {};
  std::string program = {};  // Empty: what ONCE_PROGRAM names, otherwise `once` on the PATH.

  bool tls = true;  // With `host`. Without TLS only on a loopback address.

  // With `host`: a file with the server's token, read again when the server refuses it. Empty: what ONCE_TOKEN_FILE
  // names.
  std::string token_file = {};

  // These two are a client certificate and its key, in PEM, in place of the token.
  std::string cert_file = {};
  std::string key_file = {};

  // PEM, the authorities to trust. Empty: what ONCE_CA_FILE names, otherwise the system's. The server's certificate and
  // its name are always verified.
  std::string ca_file = {};

  // How long a server that does not answer is tried again before a call fails. 1 ms to 1 h.
  Millis timeout{10'000};
};

// Connects when it is first used. Throws Exception(misuse) for options that contradict each other, and
// Exception(unavailable) if no thread can be started. In the child of a fork every call fails (misuse).
std::unique_ptr<Store> make_server_store(ServerOptions options);

}  // namespace once::stores
