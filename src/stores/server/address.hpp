// Where a server is, and whether what listens there may be believed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <once/error.hpp>
#include <once/stores/server.hpp>

namespace once::stores {

// Fills in what variables of the environment say. Throws Exception(misuse).
ServerOptions checked(ServerOptions options);

// "once:///run/once.sock", "once://db.internal:7117", "once+sqlite:/var/lib/pay/once.db": for messages.
std::string name_of(const ServerOptions& options);

// Who is at the other end of a Unix socket, and who may make files beside it.
struct Peer {
  unsigned user = 0;
  unsigned own = 0;  // This process's.
  unsigned directory_owner = 0;
  bool is_open_to_all = false;  // Every user may write the directory.
};
// Why this server is not used. Empty: it is.
std::string distrust(const Peer& peer, bool is_on_demand);
// The same of a connected socket.
std::optional<Error> check_peer(int socket, const std::string& path, bool is_on_demand);

}  // namespace once::stores
