// The named fault points of the sources: a test that has to come past all of them reads the list
// where they are, so that a new point can't be forgotten.

#pragma once

#include <string>
#include <vector>

namespace test_support {

struct NamedPoint {
    std::string name;
    std::string file;    // from the repository's root: where it is first found
    bool daemon = true;  // fabricd passes it; otherwise a rank does
};

/// Every FAULT_POINT("...") below `root` in libfabricshm/ and fabricd/, by name.
std::vector<NamedPoint> fault_points_of(const std::string& root);

}  // namespace test_support
