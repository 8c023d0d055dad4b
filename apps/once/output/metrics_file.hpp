// Files for the textfile collector of Prometheus' node_exporter, which reads *.prom of a directory.
#pragma once

#include <string>
#include <string_view>

namespace once::cli {

// Replaces the file at once, so that no reader sees a part of it, and all users may read it. False: it has said on
// standard error why not, and an earlier file is unchanged.
bool write_metrics_file(const std::string& path, std::string_view text);

}  // namespace once::cli
