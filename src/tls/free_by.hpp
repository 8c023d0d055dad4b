// A deleter for OpenSSL's objects: std::unique_ptr<X509, FreeBy<X509_free>>.
#pragma once

namespace once::tls {

template <auto free_it>
struct FreeBy {
  template <class T>
  void operator()(T* thing) const noexcept {
    free_it(thing);
  }
};

}  // namespace once::tls
