"""The gateway's data plane: carries requests to model servers and answers back, and decides nothing."""
