//! What a floating-point format keeps of a tensor, computed from its exponent histogram alone.
