"""What stands between the network and the API: who calls, from where, by which name of the hub, and how often."""
