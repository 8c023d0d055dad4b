// Resolves names with the system's resolver, without blocking.
#pragma once

#include <link.h>
#include <netdb.h>
#include <netinet/in.h>
#include <nss.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <once/callback.hpp>

#include "platform/thread.hpp"

namespace once {

// glibc looks hosts and users up by /etc/nsswitch.conf, and loads the libraries named there. A static program cannot
// load them, because they need another glibc. So it uses only what is built in since glibc 2.34: "files" and "dns". To
// be called before anything else looks up a host or a user, such as libpq.
inline void prepare_lookups() {
#ifdef __GLIBC__
  static const bool prepared = [] {
    const auto is_static = [](dl_phdr_info* program, std::size_t /*size*/, void* /*none*/) {
      for (int i = 0; i < program->dlpi_phnum; ++i) {
        if (program->dlpi_phdr[i].p_type == PT_INTERP) return 2;
      }
      return 1;  // The first object is the program itself, which has no dynamic linker.
    };
    if (dl_iterate_phdr(is_static, nullptr) == 1) {
      __nss_configure_lookup("hosts", "files dns");
      __nss_configure_lookup("passwd", "files");
    }
    return true;
  }();
  static_cast<void>(prepared);
#endif
}

// Addresses of a name, IPv4 and IPv6, in the order to try them.
struct NameAddress {
  sockaddr_storage bytes{};
  std::size_t size = 0;
};
struct NameAddresses {
  std::vector<NameAddress> found;
  std::string problem;  // If there are none.
};

// getaddrinfo() cannot be interrupted, and takes seconds if name servers do not answer. So it runs on its own detached
// thread, which calls back. Throws std::system_error if no thread can be started.
inline void look_up(std::string name, std::uint16_t port, Callback<void(NameAddresses)> done) {
  auto run = [name = std::move(name), service = std::to_string(port), done = std::move(done)]() mutable {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_ADDRCONFIG | AI_NUMERICSERV;
    addrinfo* list = nullptr;
    prepare_lookups();
    const int error = getaddrinfo(name.c_str(), service.c_str(), &hints, &list);
    NameAddresses addresses;
    for (const addrinfo* at = list; at != nullptr; at = at->ai_next) {
      NameAddress& address = addresses.found.emplace_back();
      address.size = at->ai_addrlen;
      std::memcpy(&address.bytes, at->ai_addr, at->ai_addrlen);
    }
    if (list != nullptr) freeaddrinfo(list);
    if (error != 0) addresses.problem = gai_strerror(error);
    done(std::move(addresses));
  };
  start_thread(std::move(run)).detach();
}

}  // namespace once
