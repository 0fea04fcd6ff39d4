"""The fast twins: each module does what a plain one does, faster, and a test holds the two together."""
