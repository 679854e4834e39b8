"""What does [batch, len, heads, d] cost?"""

from rootdk.bench import script

if __name__ == "__main__":
    script.main("strides")
