// The program's flags, texts and JSON are made of the parts of the operators' API, under their own names.
#pragma once

namespace once::operators {}

namespace once::cli {
using namespace operators;
}
