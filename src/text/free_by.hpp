// A deleter for a C library's objects: std::unique_ptr<X509, FreeBy<X509_free>>.
#pragma once

namespace once::text {

template <auto free_it>
struct FreeBy {
  template <class T>
  void operator()(T* thing) const noexcept {
    free_it(thing);
  }
};

}  // namespace once::text
