// What the proxy's event loop spends on the head of one request, from its first byte to what goes on to the service:
// heads that are made to be dear, as long as the default limit (32 KiB) allows, the dearest per byte last. One thread's
// processor time, the least of 20 times. fuzz_proxy_head stops at what is dearer by far.
//
//   bench_heads [bytes]
#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "heads.hpp"

int main(int argc, char** argv) {
  const std::size_t bytes = argc > 1 ? std::max(1024UL, std::strtoul(argv[1], nullptr, 10)) : 31 * 1024;
  once::proxy::HeadWork work;
  struct Row {
    std::string name;
    std::size_t bytes;
    double ns;
    bool taken;
  };
  std::vector<Row> rows;
  for (const auto& [name, head] : once::proxy::dear_heads(bytes)) {
    const double ns = work.ns_per_byte(head, 20);
    rows.push_back({name, head.size(), ns, work.run(head)});
  }
  std::ranges::sort(rows, {}, &Row::ns);
  std::printf("%-40s %8s %10s %10s\n", "head", "bytes", "ns a byte", "us in all");
  for (const Row& row : rows) {
    std::printf("%-40s %8zu %10.1f %10.1f%s\n", row.name.c_str(), row.bytes, row.ns,
                row.ns * static_cast<double>(row.bytes) / 1e3, row.taken ? "" : "  refused");
  }
}
