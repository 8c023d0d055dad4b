// Addresses of names, asked of the system's resolver without a wait.
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

// glibc looks names up as /etc/nsswitch.conf says, and loads the libraries that are named there. A program that is
// linked statically cannot: those are of another glibc than the one in it. It has the two ways in it that all systems
// have ("files" and "dns" are built in since glibc 2.34), and is told to use no other.
inline void prepare_lookups() {
#ifdef __GLIBC__
  static const bool prepared = [] {
    const auto is_static = [](dl_phdr_info* program, std::size_t /*size*/, void* /*none*/) {
      for (int i = 0; i < program->dlpi_phnum; ++i) {
        if (program->dlpi_phdr[i].p_type == PT_INTERP) return 2;
      }
      return 1;  // The program itself comes first, and it has no dynamic linker.
    };
    if (dl_iterate_phdr(is_static, nullptr) == 1) __nss_configure_lookup("hosts", "files dns");
    return true;
  }();
  static_cast<void>(prepared);
#endif
}

// What a name stands for: IPv4 and IPv6, in the order in which they are to be tried.
struct NameAddress {
  sockaddr_storage bytes{};
  std::size_t size = 0;
};
struct NameAddresses {
  std::vector<NameAddress> found;
  std::string problem;  // If there are none.
};

// getaddrinfo() cannot be interrupted and takes seconds when name servers are away: so it has a thread of its own that
// nobody waits for, and that calls back. Throws std::system_error if there is no thread to be had.
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
